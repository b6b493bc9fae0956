# The two commands of the README are `make demo` and `make test`; `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Most of the suite's time is spent waiting for processes, so four run at once; a file's tests share what they set up.
TEST_JOBS ?= 4
PARALLEL = --numprocesses $(TEST_JOBS) --dist loadfile --no-loadscope-reorder
# A busy machine can be too slow for a test that waits: what fails is tried once more, and named if it then passes.
AGAIN := --reruns 1 --reruns-delay 5 --rerun-show-tracebacks -r fER
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test test-kubernetes demo-kubernetes quick install install-dev check format bench backtest chaos soak soak-pool proofs simulate docs release clean

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

demo: install  ## train a small network at the knee of its time-cost curve, on this machine
	$(BIN)/scavenger demo examples/digits --yes

test: install-dev  ## the whole test suite
	$(BIN)/python -m pytest $(PARALLEL) $(AGAIN) --ignore tests/cluster

test-kubernetes: install-dev  ## build a real control plane once (on Debian, as root; minutes), and try what needs a cluster
	-$(BIN)/python -m tests.cluster.binaries
	$(BIN)/python -m pytest $(AGAIN)s tests/cluster

demo-kubernetes: install-dev  ## an ElasticJob with two workers, then three, then one, before a real API server (see test-kubernetes)
	$(BIN)/python -m tests.cluster.binaries
	$(BIN)/python -m tests.cluster.demo

# They compute all the time, and each process imports what all of them need.
quick: TEST_JOBS = 2
quick: install-dev  ## the unit tests: they train nothing, start no processes and compute no longer than a moment
	$(BIN)/python -m pytest $(PARALLEL) -p no:schemathesis -m unit --hypothesis-profile quick

check: install-dev  ## lint, format, types and import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

install: $(VENV)/.installed  ## prepare .venv with pinned versions

install-dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Scavenger needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --editable '.[plots]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[plots,parquet,postgresql,server,otel,ray,gcp,aws,kubernetes,operator,optuna,keras-tuner,ray-tune,compare,trainers,jax,mlflow,tensorboard,docs,dev]'
	$(BIN)/python -m compileall -q scavenger cli benchmarks  # once, instead of in each process of the tests
	@touch $@

format: install-dev  ## put the code into its standard form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install-dev  ## measure what benchmarks/README.md tells of; about half an hour
	$(BIN)/python -m benchmarks

backtest: install-dev  ## hold the models against public measurements beside the published forms; seconds
	$(BIN)/python -m benchmarks backtest vm_types curves
	$(BIN)/python -m benchmarks.backtest_pictures

chaos: install-dev  ## train while processes are killed, the disk is full, the store is out of service ...; about eight minutes
	PYTHONPATH=tests/lean:tests/e2e TF_CPP_MIN_LOG_LEVEL=2 $(BIN)/python tests/train/chaos.py

soak: install-dev  ## kill PostgreSQL, servers and runners while submitted jobs run, and look for what is lost or doubled; 25 minutes
	$(BIN)/python -m tests.control.soak --minutes 10
	$(BIN)/python -m tests.control.soak --minutes 10 --servers 2 --kill servers,runners

soak-pool: install-dev  ## kill and stop servers, runners and workers while real jobs share a pool; three quarters of an hour
	$(BIN)/python -m tests.control.soak_pool --minutes 30
	$(BIN)/python -m tests.control.soak_pool --minutes 16 --seed 1 --database postgresql --servers 2 --kill postgresql,servers,runners,workers,stops --every 10

proofs: install-dev  ## every failpoint crossed with every fault, and what else takes long; half an hour
	SCAVENGER_EVERYTHING=1 $(BIN)/python -m pytest -m nightly tests
	$(BIN)/python -m pytest $(PARALLEL) -m "hypothesis and (unit or process)" --hypothesis-profile nightly

simulate: install-dev  ## 20,000 schedules each of the elastic protocol and of provisioning under chaos; minutes
	$(BIN)/python -m tests.elastic.simulate
	$(BIN)/python -m tests.provisioning.simulate

docs: install-dev  ## the documentation as a site, in build/site; dead links and code that does not parse fail
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

release: check docs  ## wheel and sdist in dist/
	$(BIN)/python -m pip install --quiet build
	$(BIN)/python -m build

clean:  ## remove what the other commands made
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
