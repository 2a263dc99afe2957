"""Public helpers for tests: storage in memory, storage that fails on purpose, stores without a service, and checks
that every storage and every store has to pass."""
