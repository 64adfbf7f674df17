# Everything runs in a virtual environment of its own, made from constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
# Tests of a file share what they set up: one process runs them all.
BY_FILE := --numprocesses logical --dist loadfile --no-loadscope-reorder
DEMO := local fedavg ditto apfl fedrep pfedme per-fedavg local-moml

.PHONY: demo federation test test-processes golden lint types docs bench clean

demo: .venv/ready
	$(BIN)/engram compare $(DEMO) --seeds 3 --config simulations/presets/demo.toml

federation: .venv/ready
	$(BIN)/engram federation --clients 3 --set num-rounds=20 --set eta=0.4

test: .venv/ready
	$(BIN)/pytest $(BY_FILE)

test-processes: .venv/ready
	$(BIN)/pytest -m processes $(BY_FILE) $$(grep -rl --include='*.py' mark.processes tests)

golden: .venv/ready
	$(BIN)/pytest tests/golden --exact $(BY_FILE)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/hadolint docker/Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker/compose*.yml

types: .venv/ready
	$(BIN)/mypy

docs: .venv/docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: .venv/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m benchmarks.rounds
	$(BIN)/python -m benchmarks.scale

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "engram needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

.venv/docs-ready: .venv/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv build site *.egg-info
