# Everything a fresh machine needs is made here: Python 3.11+ and Java 17 or 21 are the only things to bring.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
UV_VERSION := 0.13.7
VENV := .venv
BIN := $(VENV)/bin
UV := .uv/bin/uv

.PHONY: help demo jar bench bench-quick bench-sinks bench-cdc bench-iot test test-fast certify lint types lock setup setup-dev clean

help:  ## List what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: setup  ## Run ride analytics end to end on a local broker, with its live page
	@$(BIN)/headrace demo rides

bench: setup  ## Compare with PySpark alone on this machine, about half an hour
	@$(BIN)/python bench/compare.py $(ARGS)

bench-quick: setup  ## The same comparison with fewer rows and rounds, within ten minutes
	@$(BIN)/python bench/compare.py --quick $(ARGS)

bench-sinks: setup  ## Compare the sinks for Kafka with each other
	@$(BIN)/python bench/kafka_sinks.py $(ARGS)

bench-cdc: setup  ## Compare mirrors of captured tables with a MERGE in foreachBatch
	@$(BIN)/python bench/cdc.py $(ARGS)

bench-iot: setup  ## Drain readings of a hot device, and more of them than a batch may hold
	@$(BIN)/python bench/iot.py $(ARGS)

test: setup-dev  ## Run every check and every test (ARGS="-k words" goes to pytest)
	@PATH="$(CURDIR)/$(BIN):$$PATH" tests/run $(ARGS)

test-fast: setup-dev  ## Run the checks, and the tests that need neither Spark nor a local part
	@PATH="$(CURDIR)/$(BIN):$$PATH" tests/run --fast $(ARGS)

certify: setup-dev  ## Run the long proofs: every kill, cluster, demos (resumable; ARGS="--only kafka")
	@PATH="$(CURDIR)/$(BIN):$$PATH" tests/certify/run $(ARGS)

lint: setup-dev  ## Format, lint and check the rooms
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix . && $(BIN)/lint-imports

types: setup-dev  ## Check the types
	@$(BIN)/mypy

setup: $(VENV)/.runtime  ## Make the virtual environment for running
setup-dev: $(VENV)/.dev  ## Make the virtual environment for developing

# Java is asked for first: nothing is downloaded on a machine that could not run it.
$(UV):
	@$(PYTHON) src/headrace/stack/java.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Headrace needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ". Run: make PYTHON=python3.11 ...")'
	@echo "Setting up the virtual environment (first time only)"
	@$(PYTHON) -m venv .uv
	@.uv/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(VENV)/.runtime: requirements.lock pyproject.toml | $(UV)
	@test -d $(VENV) || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	@VIRTUAL_ENV=$(VENV) $(UV) pip install --require-hashes -r requirements.lock
	@VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet --no-deps -e .
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.runtime
	@VIRTUAL_ENV=$(VENV) $(UV) pip install --require-hashes -r requirements-dev.lock
	@touch $@

jar: setup  ## Build the class that reads flat JSON, after a change of its source (needs a JDK)
	@$(BIN)/python tools/build_jar.py

lock: | $(UV)  ## Resolve the dependencies again into the two lock files
	@$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --extra stack --extra serve pyproject.toml -o requirements.lock
	@$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --extra dev -c requirements.lock pyproject.toml -o requirements-dev.lock

clean:  ## Remove the virtual environments (the data under .headrace stays)
	rm -rf .uv $(VENV)
