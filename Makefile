# The commands of README.md. Each sets up what it needs: a virtual environment in .venv with pinned
# packages, once.
#
#   make quickstart   the first run: SFT, then GRPO, resume, export, report, on four CPU ranks
#   make test         everything CI runs: lint, types, import contracts, all tests but those of slow
#   make help         the rest

PYTHON ?= python3
VENV ?= .venv
BIN := $(abspath $(VENV))/bin
READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev
# Ranks that share two cores must not spin.
export OMP_WAIT_POLICY := PASSIVE
export GOMP_SPINCOUNT := 0
# Hundreds of processes import the same modules, which are to be compiled once.
unexport PYTHONDONTWRITEBYTECODE

# One more than the two cores of CI: many tests wait for the programs they start.
WORKERS ?= 3
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations=50
# Without Slurm, a browser or a Pushgateway their tests would be skipped.
STRICT := VERL_HPC_REQUIRE_SLURM=1 VERL_HPC_REQUIRE_BROWSER=1 VERL_HPC_REQUIRE_PUSHGATEWAY=1

.PHONY: help install quickstart quickstart-ppo quickstart-real test check lint types contracts unit mpi dry-gpu runs jobs slurm slow \
	fuzz web clean

help:
	@sed -n 's/^#   //p' Makefile
	@echo "make quickstart-ppo   the same with PPO and a critic"
	@echo "make quickstart-real  a real model, SmolLM2-135M-Instruct, learns sums on two CPU ranks"
	@echo "make check            alias of make test"
	@echo "make lint|types|contracts|unit|mpi|dry-gpu|jobs|slurm|web   one part of it; runs is the last three"
	@echo "make slow             what takes too long for it; make fuzz the same of bad input"
	@echo "make clean            remove .venv and caches; runs/ stays"

$(READY): requirements/cpu.txt setup.py launch/install.sh
	PYTHON=$(PYTHON) launch/install.sh $(VENV) cpu
	@touch $@

$(READY_DEV): $(READY) requirements/dev.txt requirements/track.txt requirements/store.txt
	PYTHON=$(PYTHON) launch/install.sh $(VENV) dev
	@touch $@

install: $(READY)

quickstart: $(READY)
	PYTHON=$(BIN)/python launch/quickstart.sh grpo

quickstart-ppo: $(READY)
	PYTHON=$(BIN)/python launch/quickstart.sh ppo

quickstart-real: $(READY)
	PYTHON=$(BIN)/python launch/quickstart_real.sh sums

test: lint types contracts unit mpi dry-gpu runs

check: test

lint: $(READY_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.language verl_hpc tests examples
	$(BIN)/shellcheck benchmarks/*.sh launch/*.sh launch/*.sbatch launch/*.pbs containers/*.sh .ci/run

types: $(READY_DEV)
	$(BIN)/mypy

contracts: $(READY_DEV)
	$(BIN)/lint-imports

unit: $(READY_DEV)
	launch/install.sh $(VENV) bubblewrap
	$(PYTEST) tests/unit tests/gpu tests/fuzz

# One pytest session per world size, and one import of torch and vLLM for all of them. A test for
# several sizes runs on one of them (tests/mpi/plugin.py), and on the others in make slow.
WORLDS ?= 1 2 4
mpi: $(READY_DEV)
	$(BIN)/python -m tests.mpi.worlds $(WORLDS) -q --durations=50

# The CUDA path of engines, rollout and transfer, on a GPU that is not there: no kernel runs.
DRY_GPU = $(BIN)/python -m tests.dry_gpu -q --durations=50
dry-gpu: $(READY_DEV)
	launch/install.sh $(VENV) dry_gpu
	$(DRY_GPU)

# Whole runs: below mpiexec, on a virtual cluster (which needs root, that of a container will do), and
# the dashboard of some in a real browser.
runs: $(READY_DEV)
	launch/install.sh $(VENV) slurm
	launch/install.sh $(VENV) browser
	launch/install.sh $(VENV) pushgateway
	$(STRICT) $(PYTEST) tests/slurm tests/jobs tests/web

jobs: $(READY_DEV)
	launch/install.sh $(VENV) pushgateway
	$(STRICT) $(PYTEST) tests/jobs

slurm: $(READY_DEV)
	launch/install.sh $(VENV) slurm
	$(STRICT) $(PYTEST) tests/slurm

web: $(READY_DEV)
	launch/install.sh $(VENV) browser
	$(STRICT) $(PYTEST) tests/web

# Four quick cases of reproduce, SmolLM2 on GSM8K, all of reasoning-gym, what the quickstart gains, more
# faults of split runs, all layouts and models of what CI tests in turn, and the tier slurm for three other
# submitters.
# Its jobs of four vLLM engines were not tried three at a time.
slow: WORKERS = 2
slow: $(READY_DEV)
	launch/install.sh $(VENV) pushgateway
	$(STRICT) $(PYTEST) --slow tests/jobs tests/unit tests/gpu
	launch/install.sh $(VENV) slurm
	launch/install.sh $(VENV) accounts
	$(STRICT) $(PYTEST) --slow -m slow tests/slurm
	for who in user home allocation; do \
		$(STRICT) launch/open_python.sh $(BIN)/python $(PYTEST) tests/slurm --submitter $$who || exit; \
	done
	$(BIN)/python -m tests.mpi.worlds 1 2 4 8 16 -q --slow -m slow
	launch/install.sh $(VENV) dry_gpu
	$(DRY_GPU) --slow -m slow

# Thousands of mutated configurations, and hundreds of runs on bad input: half an hour.
fuzz: $(READY_DEV)
	$(BIN)/python -m pytest --slow tests/fuzz

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
