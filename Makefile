# The commands of README.md. Each sets up what it needs: a virtual environment in .venv with pinned
# packages, once.
#
#   make quickstart   the first run: SFT, then GRPO, resume, export, report, on four CPU ranks
#   make test         everything CI runs: lint, types, import contracts, all tests but the slow ones
#   make help         the rest

PYTHON ?= python3
VENV ?= .venv
BIN := $(abspath $(VENV))/bin
READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev
# Ranks that share two cores must not spin.
export OMP_WAIT_POLICY := PASSIVE
export GOMP_SPINCOUNT := 0

.PHONY: help install quickstart quickstart-ppo test check lint types contracts unit mpi jobs slurm slow web clean

help:
	@sed -n 's/^#   //p' Makefile
	@echo "make quickstart-ppo   the same with PPO and a critic"
	@echo "make check            alias of make test"
	@echo "make lint|types|contracts|unit|mpi|jobs|slurm|slow|web   one part of it"
	@echo "make clean            remove .venv and caches; runs/ stays"

$(READY): requirements/cpu.txt setup.py launch/install.sh
	PYTHON=$(PYTHON) launch/install.sh $(VENV) cpu
	@touch $@

$(READY_DEV): $(READY) requirements/dev.txt
	PYTHON=$(PYTHON) launch/install.sh $(VENV) dev
	@touch $@

install: $(READY)

quickstart: $(READY)
	PYTHON=$(BIN)/python launch/quickstart.sh grpo

quickstart-ppo: $(READY)
	PYTHON=$(BIN)/python launch/quickstart.sh ppo

test: lint types contracts unit mpi jobs slurm

check: test

lint: $(READY_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/shellcheck launch/*.sh launch/*.sbatch containers/*.sh .ci/run

types: $(READY_DEV)
	$(BIN)/mypy

contracts: $(READY_DEV)
	$(BIN)/lint-imports

unit: $(READY_DEV)
	$(BIN)/python -m pytest tests/unit tests/gpu

# One pytest session per world size, and one import of torch and vLLM for all of them.
WORLDS ?= 1 2 4 8 16
mpi: $(READY_DEV)
	$(BIN)/python -m tests.mpi.worlds $(WORLDS) -q

jobs: $(READY_DEV)
	$(BIN)/python -m pytest tests/jobs

# On a virtual cluster; needs root, that of a container will do.
slurm: $(READY_DEV)
	launch/install.sh $(VENV) slurm
	VERL_HPC_REQUIRE_SLURM=1 $(BIN)/python -m pytest tests/slurm

slow: $(READY_DEV)
	$(BIN)/python -m pytest tests/jobs tests/slurm tests/unit --slow

# The dashboard in a real browser; skips where there is none and none can be installed.
web: $(READY_DEV)
	command -v chromium >/dev/null || [ "$$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null || \
	    { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }
	$(BIN)/python -m pytest tests/web

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
