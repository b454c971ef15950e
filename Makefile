# The commands of this project; `make` alone lists them. Each installs what it needs first.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(PYTHON) dev/scripts/install.py
TOOLS := .cache
ENGINES := temporal prefect restate airflow dagster buildbot
NODE_FOLDERS := tests/e2e/node tests/admin/axe tests/engines/restate
ARGS ?=
CORES := $(shell cores=$$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN); echo $$((cores < 16 ? cores : 16)))
# Some tests wait, so that one process more than there are cores pays.
TEST_JOBS ?= $(shell echo $$(($(CORES) + 1)))
# The tests of engines and whole products wait even longer; each takes about a gigabyte of memory.
JOBS ?= $(CORES)
CHECK_JOBS ?= $(shell echo $$(($(CORES) + 4)))
# Without bytecode, every process compiles the product anew, which takes seconds.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.PHONY: help install install-dev install-all run test test-engines test-n8n test-e2e test-postgresql test-rabbitmq \
	check static format bench eval chaos figures generate pictures cards site wheel image audit lock clean FORCE

help:  ## List the commands.
	@echo "make COMMAND, where COMMAND is one of:"
	@sed -n 's/^\([a-z0-9-]*\):.*##  *\(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s%s\n", $$1, $$2 }'

install:  ## Install what the product needs into .venv; PYTHON=python3.14 chooses the interpreter.
	@$(INSTALL) .venv requirements/product.lock

install-dev:  ## Add the tools for tests and checks.
	@$(INSTALL) .venv requirements/dev.lock requirements/product.lock

install-all:  ## Add engines, clients and npm packages for the tests that need them (1.2 GB).
	@$(MAKE) -j5 install-dev $(addprefix install-,mcp1 $(ENGINES)) $(addsuffix /node_modules,$(NODE_FOLDERS)) $(TOOLS)/site

# A test says what it lacks and is skipped; with CI=true, everything has to be there.
install-%:
	@$(INSTALL) .venv-$* requirements/$*.lock || test "$$CI" != true

%/node_modules: FORCE
	@$(PYTHON) dev/scripts/install_node.py $* || test "$$CI" != true

$(TOOLS)/%: FORCE
	@$(INSTALL) $@ requirements/$*.lock

run: install  ## Start the product with an example engine; PORT=8001 chooses another port, Ctrl-C stops it.
	@exec $(BIN)/python deploy/tethered.py manage.py quickstart $(ARGS)

PYTEST := $(BIN)/python $(if $(REPEAT),dev/scripts/run_tests.py,-m pytest) $(COVERAGE)

test: install-dev  ## Run the tests that need no other server; ARGS="-k discovery" chooses some.
	@$(PYTEST) -n $(TEST_JOBS) -m "not engines and not e2e" $(ARGS)

test-engines: install-all  ## Run the tests against real engines: Temporal, Prefect, Restate, Airflow, Dagster, Buildbot.
	@$(PYTEST) -n $(JOBS) -m engines $(ARGS)

test-n8n: install-dev  ## Install n8n (ten minutes, 1.4 GB) and run its tests; N8N_FOLDER=FOLDER says where.
	@sh dev/scripts/install_n8n.sh "$${N8N_FOLDER:=$(CURDIR)/$(TOOLS)/n8n}" && \
		N8N_FOLDER=$$N8N_FOLDER $(PYTEST) -m engines tests/connectors/contracts/test_http_job_n8n.py $(ARGS)

test-e2e: install-all  ## Run the tests of the whole product: MCP conformance, clients, browser, killed processes.
	@$(PYTEST) -n $(JOBS) -m e2e $(ARGS)

# On servers of this machine that need no password. Without them, no test runs; with CI=true, that is an error.
ON_SERVERS = @stack=$$($(BIN)/python dev/scripts/find_services.py $(1)) || { test "$$CI" != true && exit; exit 1; }; \
	env $$stack $(PYTEST) -n $(JOBS)

test-postgresql: install-dev  ## Repeat the tests that depend on the database on PostgreSQL and Redis.
	$(call ON_SERVERS,postgres-redis) -m "databases and not engines" $(ARGS)

test-rabbitmq: install-dev  ## Repeat the tests that depend on the broker on PostgreSQL and RabbitMQ.
	$(call ON_SERVERS,postgres-rabbitmq) -m "" tests/config/test_broker.py tests/api/test_nudging.py tests/e2e/test_chaos.py $(ARGS)

check: export THOROUGH = 1
check: export REPEAT = 1
check: export COVERAGE = $(if $(COVERED),--cov --cov-append --cov-report=)
check: export ALONGSIDE ?=
check:  ## Run the static checks and all tests, as before a release; COVERED=1 adds the coverage.
	@rm -f .coverage .coverage.*
	@$(PYTHON) dev/scripts/stages.py "installation=$(MAKE) install-all" "tests=$(MAKE) test" "+static checks=$(MAKE) static" \
		"engines and e2e tests=$(MAKE) test-e2e JOBS=$(CHECK_JOBS) ARGS='-m \"engines or e2e\"'" "$$ALONGSIDE" \
		$(if $(COVERED),"coverage=$(BIN)/coverage report --skip-covered --sort=cover")

# The checks load Django's settings, which create files in the data folder.
static: export CATALOGUE_DATA_DIR = $(CURDIR)/.cache/check
static: install-dev $(TOOLS)/deployment  ## Check style, types, imports, migrations, settings for production and the files in deploy/.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python dev/scripts/figures.py --map compare
	$(BIN)/python manage.py makemigrations --check --dry-run
	CATALOGUE_PUBLIC_URL=https://catalogue.example.com $(BIN)/python manage.py check --deploy --fail-level WARNING
	$(TOOLS)/deployment/bin/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml
	$(TOOLS)/deployment/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/ci.yml
	$(TOOLS)/deployment/bin/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/*.yml
	$(TOOLS)/deployment/bin/check-jsonschema --builtin-schema vendor.renovate .github/renovate.json
	$(TOOLS)/deployment/bin/python dev/scripts/check_deployment.py

format: install-dev  ## Format the code and mend what the linter can mend.
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: install-dev  ## Measure speed and memory; ARGS=calls chooses one, ARGS=--list lists them.
	@$(BIN)/python -m dev.benchmarks $(ARGS)

eval: install  ## Ask the configured model 40 instructions and mark its answers; ARGS=--help lists the options.
	@$(BIN)/python -m dev.evaluation $(ARGS)

chaos: install-dev  ## Kill processes under load and look for lost runs; RUN=approvals, bursts, crashpoints or rolling.
	@$(BIN)/python -m dev.chaos$(addprefix .,$(RUN)) $(if $(SEED),--seed $(SEED)) $(ARGS)

figures: install-dev  ## Count modules, lines and functions; ARGS="--against HEAD~10" compares.
	@$(BIN)/python dev/scripts/figures.py $(ARGS)

generate: install-dev  ## Write the files that a test compares with the code: the OpenAPI schema, the map, the languages.
	@$(BIN)/python dev/scripts/figures.py --map write
	@$(BIN)/python manage.py spectacular --fail-on-warn --validate --file tests/api/openapi.yaml
	@if command -v xgettext >/dev/null; then $(BIN)/python manage.py makemessages && $(BIN)/python manage.py compilemessages --ignore '.*'; \
		else echo "The languages are as they were: they need GNU gettext."; fi

pictures: install-dev  ## Take the documentation's pictures again; needs chromium and chromedriver.
	@PICTURES=docs $(BIN)/python -m pytest --quiet tests/admin/test_pictures.py tests/e2e/test_pictures_of_cards.py $(ARGS)

cards: tests/e2e/node/node_modules  ## Build mcp_bridge/cards/card.html, which MCP clients show in the chat.
	@node dev/scripts/build_cards.mjs

site: $(TOOLS)/site  ## Build the documentation as a web site in .cache/documentation/site.
	@rm -rf .cache/documentation && mkdir -p .cache/documentation && cp -R docs deploy/site/. .cache/documentation
	@cd .cache/documentation && ../site/bin/python -m zensical build --strict

wheel: $(TOOLS)/wheel  ## Build the wheel into dist/, with a bill of materials.
	@$(TOOLS)/wheel/bin/python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .

ENGINE ?= docker
IMAGE ?= workflow-catalogue:latest
image:  ## Build the container image; ENGINE=podman, IMAGE=name:tag, ARGS="--build-arg BASE=...".
	@DOCKER_BUILDKIT=1 $(ENGINE) build $(if $(findstring podman,$(ENGINE)),--format docker) \
		--file deploy/Dockerfile --tag $(IMAGE) $(ARGS) .

audit: $(TOOLS)/audit  ## Look for known vulnerabilities with bandit, and with pip-audit, which asks PyPI.
	$(TOOLS)/audit/bin/bandit --quiet --recursive --severity-level medium --configfile pyproject.toml \
		access audit catalogue config connectors deploy executions identity mcp_bridge orchestration telemetry manage.py
	$(TOOLS)/audit/bin/pip-audit --strict --disable-pip --require-hashes --requirement requirements/product.lock

LOCKS := installer audit deployment site wheel mcp1 $(ENGINES) model
# A lock begins with the command that wrote it, which Renovate repeats: hence the `=`, and the option in pyproject.toml.
COMPILE := $(TOOLS)/installer/bin/uv pip compile --quiet --universal --python-version=3.11 --generate-hashes
lock: $(TOOLS)/installer  ## Write the lock files in requirements/ from the .txt files; ARGS="--upgrade" takes newer releases.
	$(COMPILE) $(ARGS) --output-file=requirements/product.lock requirements.txt
	$(COMPILE) $(ARGS) --constraint=requirements/product.lock --output-file=requirements/dev.lock requirements/dev.txt
	@for name in $(LOCKS); do echo "$$name ..." && \
		$(COMPILE) $(ARGS) $$(test $$name != model || echo --override=requirements/model-left-out.txt) \
			--output-file=requirements/$$name.lock requirements/$$name.txt || exit; done
	@for folder in $(NODE_FOLDERS); do (cd $$folder && npm install --package-lock-only --no-progress --loglevel=error) || exit; done

clean:  ## Remove environments and caches; the data in var/ stays.
	rm -rf .venv .venv-* $(addsuffix /node_modules,$(NODE_FOLDERS)) .cache .coverage .coverage.* htmlcov
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@test ! -d var || echo "Kept var/, which holds the database; delete it by hand to start afresh."
