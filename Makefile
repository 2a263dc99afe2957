# Every target sets up what it needs; a second run finds nothing to do.
.PHONY: setup demo test lint kernel-test python-test fuzz bench

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
	.venv/bin/pytest -n 2 --dist loadfile --no-loadscope-reorder

# Random queries, data and batches against Spark's own results: `make fuzz MINUTES=30`.
fuzz: setup
	@scripts/fuzz $(or $(MINUTES),10)

# What the README and docs/benchmarks.md claim, in about ten minutes; figures and plots land in bench-out.
bench: setup
	.venv/bin/millpond bench kernel --json bench-out/kernel.json
	.venv/bin/millpond bench keyed --engine millpond --engine spark-rocksdb --engine passthrough --json bench-out/keyed.json
	.venv/bin/millpond bench q12 --keys 10000000 --memory 64m --json bench-out/q12.json
	.venv/bin/millpond bench q5 --events 3000000 --json bench-out/q5.json
	.venv/bin/millpond bench report bench-out/*.json --out bench-out
