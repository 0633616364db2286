# Every target makes and reuses .venv and installs what it needs: a new machine needs Python >= 3.11 and make.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
# A plain `torch` may bring gigabytes of CUDA libraries. Where this version's file is not the CPU build,
# name the wheel index that has it: make demo TORCH_INDEX=<url>
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
# Arguments for the demo and for pytest: make demo ARGS="--steps 4", make test ARGS="-k wire"
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
DEMO := $(VENV)/.installed-demo
DEV := $(VENV)/.installed-dev

.PHONY: help demo test lint format bench clean

help:  ## Say what each target does
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1	/' | expand -t 12

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed, %s is %s; set PYTHON=" % (sys.executable, sys.version.split()[0]))'
	$(PYTHON) -m venv $(VENV)

$(DEMO): pyproject.toml | $(BIN)/python
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(PIP) --editable '.[demo]'
	touch $@

$(DEV): pyproject.toml | $(DEMO)
	$(PIP) --editable '.[dev]'
	touch $@

demo: $(DEMO)  ## Distil a small model from its teacher on this machine, no GPU needed
	$(BIN)/atropos demo $(ARGS)

lint: $(DEV)  ## Format check, ruff, mypy --strict, import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: lint  ## Lint, then every test that needs no vLLM
	$(BIN)/pytest -m 'not vllm' $(ARGS)

format: $(DEV)  ## Rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(DEV)  ## Run the benchmarks and refresh docs/benchmarks.md
	$(BIN)/python -m benchmarks.run $(ARGS)

clean:  ## Remove the environment and what tests left behind
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis runs
