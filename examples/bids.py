"""Bids per bidder and window, from a directory of Parquet files to another.

    PYSPARK_PYTHON=.venv/bin/python .venv/bin/python examples/bids.py IN OUT CHECKPOINT

IN holds files with the columns bidder (bigint), price (bigint) and ts (timestamp). Run it again after adding files:
it goes on where it stopped.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import millpond as mp

source, out, checkpoint = sys.argv[1:]
spark = SparkSession.builder.appName("bids").getOrCreate()
bids = spark.readStream.schema("bidder bigint, price bigint, ts timestamp").parquet(source)

counts = (
    mp.stream(bids)
    .withWatermark("ts", "4 seconds")
    .groupBy("bidder", F.window("ts", "10 seconds"))
    .agg(F.count("*").alias("n"), F.sum("price").alias("total"), F.max("price"), F.avg("price"))
)
query = (
    counts.where(counts["n"] > 3)
    .writeStream.outputMode("append")
    .format("parquet")
    .option("path", out)
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .queryName("bids")
    .start()
)
query.awaitTermination()
spark.read.parquet(out).orderBy("window", "bidder").show(10, truncate=False)
spark.stop()
