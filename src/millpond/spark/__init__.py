"""Everything that speaks to Spark: cutting plans, running batches, reading sources, writing sinks.

The only part of the product that imports pyspark.
"""
