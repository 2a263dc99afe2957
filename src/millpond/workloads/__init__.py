"""Streams and queries to try Millpond with and to measure it by."""
