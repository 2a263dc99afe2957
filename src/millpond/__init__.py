"""Millpond: a state layer for stateful stream processing on Spark."""
