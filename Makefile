# One target per job, the same for people and CI. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
PORT ?= 8080
# Test processes. More than the smallest machine has cores, because some tests mostly wait.
test: WORKERS ?= 4
test-long: WORKERS ?= 3
E2E_WORKERS ?= 2
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/gpufleet/__init__.py)
IMAGE ?= gpufleet
TAG ?= v$(VERSION)
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gpufleet
VENV := .venv
BIN := $(VENV)/bin
# Use the system's certificates, for networks with their own certificate authority.
export UV_SYSTEM_CERTS := true
# Without bytecode every process that a test starts would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
INSTALL = $(UV) pip install --quiet --python $(BIN)/python
LOCK = $(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header
WHEEL = $(UV) build --quiet --wheel --no-build-isolation --python $(BIN)/python --out-dir dist
PAGE := src/gpufleet/server/dashboard/static/index.html
PAGE_SOURCES = $(shell find dashboard \( -path dashboard/node_modules -o -path dashboard/tools \) -prune -o -type f -print 2>/dev/null)
API_SOURCES = dashboard/tools/openapi.py $(shell find src/gpufleet -name '*.py')
API_DOCUMENT := dashboard/openapi.json
API_TYPES := dashboard/src/api/schema.ts
NODE_MODULES := dashboard/node_modules/.package-lock.json
HAVE_NODE := node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null && command -v npm >/dev/null
# PostgreSQL, demos and other temporary files of tests are faster in memory, if 4 GB are free and programs may run there.
MEMORY := /dev/shm
PYTEST = if [ -z "$$TMPDIR" ] && [ "$$(df --output=avail $(MEMORY) 2>/dev/null | tail -n 1)" -ge 4194304 ] 2>/dev/null \
	&& folder=$$(mktemp -d $(MEMORY)/gpufleet.XXXXXX) && trap 'rm -rf "$$folder"' EXIT && chmod 711 "$$folder" \
	&& install -m 755 /dev/null "$$folder/program" && "$$folder/program"; then export TMPDIR="$$folder"; fi 2>/dev/null; \
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --config-file docsite/mkdocs.yml
ACTIONLINT_VERSION := v1.7.7
ACTIONLINT := $(CACHE)/actionlint-$(ACTIONLINT_VERSION)/actionlint

.PHONY: help run test test-long test-wheel check e2e e2e-cluster e2e-load e2e-mixed chaos bench ways build charts image sbom lock docs site clean dashboard krew \
	page-if-node browser-if-root check-dashboard check-docs check-workflows test-dashboard

# Several targets set up the same environment.
.NOTPARALLEL:

help: ## List the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.run page-if-node ## Set everything up and start the demo on 127.0.0.1:$PORT
	@PORT=$(PORT) $(BIN)/gpufleet demo $(ARGS)

test: $(VENV)/.dev page-if-node browser-if-root test-dashboard ## Run the tests (some of them: ARGS="-k lease")
	@$(PYTEST) -m "not long" $(ARGS)

test-long: $(VENV)/.dev page-if-node browser-if-root ## Run the tests that start whole programs or browsers, or search long for faults (4 minutes)
	@$(PYTEST) -m long tests $(ARGS)

test-wheel: $(VENV)/.dev page-if-node ## Install the wheels into fresh environments and start the demo (part of e2e)
	@$(BIN)/pytest e2e/test_wheel.py $(ARGS)

check: $(VENV)/.dev ## Run the linters and type checkers
	@echo "==> ruff"; $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "==> mypy"; $(BIN)/mypy
	@echo "==> import-linter"; output=$$($(BIN)/lint-imports --no-cache 2>&1) \
		&& tail -n 3 <<<"$$output" || { echo "$$output"; exit 1; }
	@$(MAKE) --silent check-docs check-workflows check-dashboard

e2e: $(VENV)/.dev page-if-node ## Run the end-to-end tests against a real control plane
	@$(BIN)/pytest e2e -n $(E2E_WORKERS) -m "not whole_cluster" --durations 25 $(ARGS)

e2e-cluster: $(VENV)/.dev ## Build the images and try both charts with them on a whole cluster (needs root, 3 minutes; more the first time)
	@$(BIN)/pytest e2e/test_whole_cluster.py $(ARGS)

e2e-load: $(VENV)/.dev ## Bind 2,000 claim pods on 1,000 nodes and compare with plain kube-scheduler
	@$(BIN)/python -m e2e.load $(ARGS)

chaos: $(VENV)/.dev ## Kill, pause and disconnect components under load for CHAOS_SECONDS (600)
	@$(BIN)/python -m e2e.chaos $(ARGS)

e2e-mixed: $(VENV)/.dev ## Run claims, device-plugin pods, ResourceClaims and Kueue Jobs together for 10 minutes
	@$(BIN)/python -m e2e.mixed $(ARGS)

bench: $(VENV)/.dev ## Measure against the budgets; writes bench/results/*.json
	@$(BIN)/python -m bench $(ARGS)

ways: $(VENV)/.dev ## Count the modules that a pod and a request pass on their way
	@$(BIN)/python -m bench ways

build: $(VENV)/.dev page-if-node ## Build the wheels of gpufleet and kubelite into dist/
	@$(WHEEL) . && $(WHEEL) packages/kubelite && ls -l dist/*.whl

charts: $(VENV)/.dev ## Package the Helm charts into dist/
	@$(BIN)/helm package --destination dist charts/gpufleet charts/gpu-scheduler

krew: ## Write the archive and manifest of the kubectl plugin into dist/ (OWNER of the repository)
	@$(PYTHON) packages/krew/build.py $(or $(OWNER),OWNER) $(VERSION) dist && ls -l dist/kubectl-gpufleet-* dist/krew-gpufleet.yaml

dashboard: $(PAGE) ## Build the dashboard (needs Node.js 20 or newer)

image: ## Build the images of agent, scheduler and server (needs docker or podman; IMAGE=registry/gpufleet TAG=v1)
	@engine=$$(command -v docker || command -v podman) && $$engine info >/dev/null 2>&1 \
		|| { echo "make image needs a running docker or podman"; exit 1; }; \
	for role in agent scheduler server; do \
		$$engine build --build-arg SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) --target $$role \
			-t $(IMAGE)-$$role:$(TAG) . || exit 1; \
	done

sbom: $(VENV)/.dev ## Write the locked dependencies as CycloneDX into dist/*.cdx.json
	@mkdir -p dist
	@$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --of JSON \
		-o dist/gpufleet.cdx.json requirements/runtime.txt 2>/dev/null
	@if ! command -v npm >/dev/null; then echo "==> no npm: skipping the SBOM of the dashboard"; \
	else (cd dashboard && npm sbom --sbom-format cyclonedx --package-lock-only --omit dev) > dist/dashboard.cdx.json; fi
	@ls -l dist/*.cdx.json

docs: $(VENV)/.dev ## Regenerate the pages, chart tables and CRDs that come from the code; build the site
	@$(BIN)/python -m docsite.generate
	@$(BIN)/python -m mixin.generate
	@$(BIN)/python -m charts.reference
	@$(BIN)/python -m gpufleet.kubernetes.crds.generate charts/gpu-scheduler/crds
	@$(MAKE) --silent site

site: $(VENV)/.dev ## Build the documentation site into dist/site
	@$(MKDOCS) && echo "==> dist/site/index.html"

# kubelite is installed from packages/, so the lock files hold only what it depends on.
lock: $(UV) ## Update the lock files to the newest versions, with hashes
	$(LOCK) --all-extras --no-emit-package kubelite pyproject.toml requirements/build.in -o requirements/runtime.txt
	$(LOCK) --all-extras --no-emit-package kubelite pyproject.toml requirements/dev.in \
		-c requirements/runtime.txt -o requirements/dev.txt
	$(LOCK) requirements/uv.in -o requirements/uv.txt

clean: ## Remove everything the other targets created, except server data
	rm -rf $(VENV) .uv dist .mypy_cache .ruff_cache .pytest_cache bench/results dashboard/node_modules $(dir $(PAGE)) $(API_DOCUMENT) $(API_TYPES)

.uv/bin/uv:
	@echo "==> installing uv"
	@$(PYTHON) -m venv .uv && .uv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt

$(BIN)/python: | $(UV)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "gpufleet needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "==> creating $(VENV)"
	@$(UV) venv --quiet --python "$$(command -v $(PYTHON))" $(VENV)

$(VENV)/.run: requirements/runtime.txt pyproject.toml packages/kubelite/pyproject.toml | $(BIN)/python
	@echo "==> installing gpufleet and its dependencies"
	@$(INSTALL) --require-hashes -r requirements/runtime.txt
	@$(INSTALL) --no-deps --no-build-isolation -e packages/kubelite -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml packages/kubelite/pyproject.toml | $(BIN)/python
	@echo "==> installing gpufleet with development dependencies"
	@$(INSTALL) --require-hashes -r requirements/dev.txt
	@$(INSTALL) --no-deps --no-build-isolation -e packages/kubelite -e .
	@touch $@ $(VENV)/.run

# Everything but the dashboard works without Node.js, so the targets below only print a line when it is missing.
page-if-node:
	@if $(HAVE_NODE); then \
		$(MAKE) --silent $(PAGE) || echo "==> the dashboard build failed; continuing without it"; \
	elif [ ! -f $(PAGE) ]; then \
		echo "==> no Node.js 20 or newer: skipping the dashboard"; \
	fi

check-docs:
	@echo "==> docs: generated pages, links"; $(BIN)/python -m docsite.generate --check
	@site=$$(mktemp -d) && trap 'rm -rf $$site' EXIT && $(MKDOCS) --site-dir $$site

check-dashboard:
	@if ! $(HAVE_NODE); then echo "==> no Node.js 20 or newer: skipping the dashboard's checks"; \
	elif ! $(MAKE) --silent $(NODE_MODULES); then echo "==> npm ci failed: skipping the dashboard's checks"; \
	else echo "==> dashboard: types, lint, format"; $(MAKE) --silent $(API_TYPES) && cd dashboard && npm run --silent check \
		&& npm run --silent --if-present lint && npm run --silent --if-present format:check; fi

test-dashboard:
	@if ! $(HAVE_NODE); then echo "==> no Node.js 20 or newer: skipping the dashboard's unit tests"; \
	elif ! $(MAKE) --silent $(NODE_MODULES); then echo "==> npm ci failed: skipping the dashboard's unit tests"; \
	else $(MAKE) --silent $(API_TYPES) && cd dashboard && npm test --silent --if-present; fi

# The actionlint package on PyPI downloads a binary during the build; the Go module needs only the Go toolchain.
check-workflows:
	@if [ -x $(ACTIONLINT) ] || $(MAKE) --silent $(ACTIONLINT); then \
		echo "==> actionlint"; $(ACTIONLINT) .github/workflows/*.yml; \
	else echo "==> actionlint could not be built (needs Go and network access): skipping the workflows"; fi

$(ACTIONLINT):
	@command -v go >/dev/null && echo "==> building actionlint $(ACTIONLINT_VERSION)" \
		&& GOBIN=$(dir $@) go install github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT_VERSION) 2>/dev/null

# Only root can install a browser; without one, the browser tests are skipped with a message.
browser-if-root:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! command -v chromium chromium-browser google-chrome >/dev/null; then \
		echo "==> installing Chromium for the browser tests"; \
		install="env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium"; \
		{ $$install || { apt-get update -qq && $$install; }; } >/dev/null 2>&1 \
			|| echo "==> Chromium could not be installed; the browser tests are skipped"; \
	fi

$(PAGE): $(PAGE_SOURCES) $(API_TYPES) $(NODE_MODULES)
	@echo "==> building the dashboard"
	@cd dashboard && npm run --silent build -- --logLevel warn && touch ../$@

$(NODE_MODULES): dashboard/package-lock.json
	@echo "==> installing the dashboard's dependencies"
	@cd dashboard && npm ci --silent --no-audit --no-fund && touch node_modules/.package-lock.json

$(API_TYPES): $(API_DOCUMENT) dashboard/package.json $(NODE_MODULES)
	@cd dashboard && output=$$(npm run --silent types 2>&1) && touch ../$@ || { echo "$$output"; exit 1; }

# The document keeps its time if it has not changed, so that only a change of the API builds the page again.
$(API_DOCUMENT): $(VENV)/.openapi
	@[ -f $@ ] || $(BIN)/python -m dashboard.tools.openapi $@

$(VENV)/.openapi: $(API_SOURCES) $(VENV)/.run
	@$(BIN)/python -m dashboard.tools.openapi $(API_DOCUMENT) && touch $@
