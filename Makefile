# Everything a newcomer needs: `make demo` and `make test` do their own set-up.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: setup demo test test-long check bench serve lock clean

setup: $(STAMP)

$(STAMP): requirements/build.txt requirements/dev.txt pyproject.toml scripts/setup.sh
	@PYTHON=$(PYTHON) scripts/setup.sh

demo: setup
	@$(BIN)/python -m examples.flights $(ARGS)

check: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/pytest -q -m "not slow and not interop and not spark" tests

test: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/pytest $(ARGS)

test-long: setup
	@$(BIN)/pytest -m long $(ARGS)

bench: setup
	@$(BIN)/python -m benchmarks $(ARGS)

serve: setup
	@$(BIN)/penstock serve $(ARGS)

lock: setup
	@scripts/lock.sh

clean:
	rm -rf $(VENV) .cache build dist .pytest_cache .mypy_cache .ruff_cache
