"""Public helpers for tests: storage in memory, storage that fails on purpose, and conformance checks."""
