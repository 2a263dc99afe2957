"""Flink as a peer: an environment of its own, a job in its own process, a result that the digest can read."""
