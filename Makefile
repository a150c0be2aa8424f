# Everything a newcomer needs: `make demo` and `make test` do their own set-up.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Test processes; each takes whole files (tests/parallel.py) and has its own brokers and Spark session.
# There are more than cores, because tests also wait for servers, timeouts and disks.
WORKERS ?= 6
MYPY_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/penstock/mypy
STAMP := $(VENV)/.ready
KERNELS := src/penstock/kernels

# Python keeps compiled files: tests start thousands of processes, and each would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo demo-cluster test test-long compat-diskless compat-cluster compat-secure check bench bench-record docs screenshots serve dist lock clean

setup: $(STAMP) $(KERNELS)/_native.abi3.so

$(STAMP): requirements/build.txt requirements/dev.txt pyproject.toml scripts/setup.sh
	@PYTHON=$(PYTHON) scripts/setup.sh

$(KERNELS)/_native.abi3.so: $(wildcard $(KERNELS)/*.py) | $(STAMP)
	@$(BIN)/python scripts/kernels.py

demo demo-cluster: setup
	@$(BIN)/python -m examples.flights $(if $(findstring cluster,$@),--cluster) $(ARGS)

check: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --cache-dir $(MYPY_CACHE)
	@$(BIN)/lint-imports
	@$(BIN)/pytest -q -m "not slow and not interop and not spark" tests

# mypy runs beside the tests. Its cache outlives the clone. The report has the duration of each test.
test: export PENSTOCK_TEST_REPORT ?= .cache/test-report.json
test: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@mkdir -p .cache
	@nice $(BIN)/mypy --cache-dir $(MYPY_CACHE) > .cache/mypy.txt & mypy=$$!; \
	$(BIN)/pytest --processes $(WORKERS) --durations 50 $(ARGS); status=$$?; \
	wait $$mypy || { cat .cache/mypy.txt; rm -f $(PENSTOCK_TEST_REPORT); status=1; }; \
	exit $$status

test-long: WORKERS := 3
test-long: setup
	@$(BIN)/pytest --processes $(WORKERS) -m long --timeout 900 \
		--hypothesis-profile search $(ARGS)

# Foreign clients with every topic diskless: on SQLite and a directory, on PostgreSQL and S3.
compat-diskless: setup
	@PENSTOCK_COMPAT_TOPICS=diskless PENSTOCK_PAIR_KILLS=9 $(BIN)/pytest compat $(ARGS)
	@PENSTOCK_COMPAT_TOPICS=diskless PENSTOCK_COMPAT_STORES=postgres-s3 PENSTOCK_PAIR_KILLS=9 \
		$(BIN)/pytest compat $(ARGS)

# The same with a copy of every topic on each of three brokers, one of which is restarted every 20 s.
# What a client gives up just then is tried once more, as in CI.
compat-cluster: export PENSTOCK_COMPAT_TOPICS = replicated
compat-cluster: export PENSTOCK_TEST_REPORT = .cache/compat-cluster.json
compat-cluster: setup
	@rm -f $(PENSTOCK_TEST_REPORT)
	@$(BIN)/pytest compat $(ARGS) || $(BIN)/python scripts/retry_failed.py $(PENSTOCK_TEST_REPORT)

# The same by SASL_SSL, where each client may do just what it does.
compat-secure: setup
	@PENSTOCK_COMPAT_SECURITY=sasl_ssl $(BIN)/pytest compat $(ARGS)

# Results go to .cache/bench; those of bench-record to benchmarks/results, to be kept.
bench: setup
	@$(BIN)/python -m benchmarks $(ARGS)

bench-record: setup
	@$(BIN)/python -m benchmarks --record $(ARGS)

# Pictures of the console's pages in .cache/screenshots; ARGS names pages.
screenshots: setup
	@$(BIN)/python scripts/screenshots.py $(ARGS)

# The documentation site, in .cache/site.
docs: setup
	@$(BIN)/python scripts/site.py

serve: setup
	@$(BIN)/penstock serve $(ARGS)

# Source archive and wheel of the last commit's version, byte for byte the same each time.
dist: setup
	@$(BIN)/python scripts/dist.py $(ARGS)

lock: setup
	@scripts/lock.sh

clean:
	rm -rf $(KERNELS)/_native.abi3.so $(VENV) .cache build dist .pytest_cache .mypy_cache .ruff_cache
