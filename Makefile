# Everything runs in a virtual environment of its own, made from constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
# Hundreds of processes that tests start would each compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

# Tests of a file share what they set up: one process runs them all.
BY_FILE := --numprocesses logical --dist loadfile --no-loadscope-reorder
DEMO := local fedavg ditto apfl fedrep pfedme per-fedavg local-moml

# What stands on Flower: its numbers, its grids, apps on Ray, strategies and mods for users' apps,
# and its own server and nodes.
FLOWER := tests/wire/test_messages.py tests/server/test_grid.py tests/simulations/test_apps.py \
	tests/flower
FLOWER_PROCESSES := tests/processes/test_stock_flower.py \
	tests/simulations/test_ray.py::test_an_app_of_a_users_own

.PHONY: demo federation test test-all test-processes newest golden lint types docs sbom bench containers clean

demo: .venv/ready
	$(BIN)/engram compare $(DEMO) --config simulations/presets/demo.toml

federation: .venv/ready
	$(BIN)/engram federation --clients 3 --set num-rounds=20 --set eta=0.4

test: .venv/ready
	$(BIN)/pytest $(BY_FILE)

# Tables of which `make test` runs a sample, in full.
test-all: .venv/ready
	$(BIN)/pytest -m 'not processes' $(BY_FILE)
	$(MAKE) test-processes

# A process test that hangs says where.
test-processes: .venv/ready
	$(BIN)/pytest -m processes -o faulthandler_timeout=600 $(BY_FILE) $$(grep -rl --include='*.py' mark.processes tests)

newest: .newest/ready
	.newest/bin/pytest $(FLOWER) $(BY_FILE)
	.newest/bin/pytest -m processes $(FLOWER_PROCESSES) $(BY_FILE)
	rm -rf .newest/run
	.newest/bin/engram federation --clients 3 --set num-rounds=2 --out .newest/run

golden: .venv/ready
	$(BIN)/pytest -m 'not processes' tests/golden --exact $(BY_FILE)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/hadolint docker/Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker/compose*.yml
	$(BIN)/check-jsonschema --check-metaschema docs/release.schema.json
	for part in server client; do \
	  $(BIN)/kubectl kustomize docker/kubernetes/$$part | $(BIN)/kubernetes-validate --strict --quiet /dev/stdin || exit 1; \
	done

types: .venv/ready
	$(BIN)/mypy

docs: .venv/docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# What the image installs, with checksums, and what this environment holds, torch too.
sbom: .venv/docs-ready
	mkdir -p build
	$(BIN)/pip check
	$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
	  --output-file build/sbom-image.json docker/requirements.txt
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  --output-file build/sbom-environment.json .venv

bench: .venv/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m benchmarks.rounds
	$(BIN)/python -m benchmarks.scale

containers: .venv/ready
	$(BIN)/python -m tests.docker.containers

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "engram needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# Of two pins of one package, the first counts.
.newest/ready: pyproject.toml constraints.txt constraints-newest.txt
	$(PYTHON) -m venv .newest
	awk -F== '!seen[tolower($$1)]++' constraints-newest.txt constraints.txt > .newest/constraints.txt
	.newest/bin/pip install --quiet --constraint .newest/constraints.txt --editable '.[dev]'
	touch $@

.venv/docs-ready: .venv/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv .newest build site *.egg-info
