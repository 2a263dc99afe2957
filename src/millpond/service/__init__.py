"""The state service: a process of its own that owns shards and speaks Arrow Flight. No Spark enters here."""
