# Every target sets up what it needs; a second run finds nothing to do.
.PHONY: setup demo test lint kernel-test python-test bench

setup:
	@scripts/setup

demo: setup
	@.venv/bin/millpond demo

test: lint kernel-test python-test

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	cd kernel && cargo fmt --check
	cd kernel && PYO3_PYTHON=$(CURDIR)/.venv/bin/python cargo clippy --all-targets -- -D warnings

kernel-test: setup
	cd kernel && PYO3_PYTHON=$(CURDIR)/.venv/bin/python cargo test

python-test: setup
	.venv/bin/pytest -n 2 --dist loadfile

bench: setup
	.venv/bin/millpond bench kernel --json bench-kernel.json
	.venv/bin/millpond bench keyed --json bench-keyed.json
	.venv/bin/millpond bench keyed --small --json bench-small.json
