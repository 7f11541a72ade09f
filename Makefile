# One target a job, the same for people and CI. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
PORT ?= 8080
# One more than the least machine has cores: some tests wait for a process most of the time.
WORKERS ?= 3
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/gpufleet/__init__.py)
IMAGE ?= gpufleet:v$(VERSION)
VENV := .venv
BIN := $(VENV)/bin
# Networks with certificates of their own: trust what the machine trusts.
export UV_SYSTEM_CERTS := true
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
INSTALL = $(UV) pip install --quiet --python $(BIN)/python
PAGE := src/gpufleet/server/dashboard/static/index.html
PAGE_SOURCES = $(shell find dashboard -path dashboard/node_modules -prune -o -type f -print 2>/dev/null)

.PHONY: help run test check e2e e2e-load chaos bench build image sbom lock docs clean dashboard page-if-node browser-if-root

help: ## List the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.run page-if-node ## Set everything up and start the demo on 127.0.0.1:$PORT
	@PORT=$(PORT) $(BIN)/gpufleet demo $(ARGS)

test: $(VENV)/.dev page-if-node browser-if-root ## Run the tests (ARGS="-k lease" for some)
	@$(BIN)/pytest -n $(WORKERS) --dist loadfile $(ARGS)

check: $(VENV)/.dev ## Lint, types and layers
	@echo "==> ruff"; $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "==> mypy"; $(BIN)/mypy
	@echo "==> import-linter"; $(BIN)/lint-imports --no-cache >/tmp/gpufleet-lint-imports.$$$$ 2>&1 \
		&& tail -n 3 /tmp/gpufleet-lint-imports.$$$$; s=$$?; \
		[ $$s -eq 0 ] || cat /tmp/gpufleet-lint-imports.$$$$; rm -f /tmp/gpufleet-lint-imports.$$$$; exit $$s

e2e: $(VENV)/.dev page-if-node ## Run the end-to-end tests on a real control plane
	@$(BIN)/pytest e2e $(ARGS)

e2e-load: $(VENV)/.dev ## Bind 2,000 claim pods at once on 1,000 nodes, beside plain kube-scheduler
	@$(BIN)/python -m e2e.load $(ARGS)

chaos: $(VENV)/.dev ## Kill, pause and cut off every part under load for CHAOS_SECONDS (600)
	@$(BIN)/python -m e2e.chaos $(ARGS)

bench: $(VENV)/.dev ## Measure against the budgets; writes bench/results/*.json
	@$(BIN)/python -m bench $(ARGS)

build: $(VENV)/.dev page-if-node ## Build the wheel into dist/
	@$(UV) build --quiet --wheel --no-build-isolation --python $(BIN)/python && ls -l dist

dashboard: $(PAGE) ## Build the web page (needs Node.js 20 or newer)

image: ## Build the container image (needs docker or podman; IMAGE=registry/name:tag)
	@engine=$$(command -v docker || command -v podman) && $$engine info >/dev/null 2>&1 \
		|| { echo "make image needs a running docker or podman"; exit 1; }; \
	$$engine build --build-arg SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) -t $(IMAGE) .

sbom: $(VENV)/.dev ## Write what is in the image into dist/*.cdx.json (CycloneDX)
	@mkdir -p dist
	@$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --of JSON \
		-o dist/gpufleet.cdx.json requirements/runtime.txt 2>/dev/null
	@if [ ! -f dashboard/package-lock.json ]; then echo "==> no dashboard/: its part is left out"; \
	elif ! command -v npm >/dev/null; then echo "==> no npm: the dashboard's part is left out"; \
	else (cd dashboard && npm sbom --sbom-format cyclonedx --package-lock-only --omit dev) > dist/dashboard.cdx.json; fi
	@ls -l dist/*.cdx.json

docs: $(VENV)/.dev ## Regenerate what docs/ takes from the code
	@$(BIN)/python -m gpufleet.runtime.settings.reference > docs/settings.md
	@$(BIN)/python -m charts.reference

lock: $(UV) ## Pin the newest dependencies, with hashes
	$(UV) pip compile -q --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		pyproject.toml requirements/build.in -o requirements/runtime.txt
	$(UV) pip compile -q --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		pyproject.toml requirements/dev.in -c requirements/runtime.txt -o requirements/dev.txt
	$(UV) pip compile -q --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		requirements/uv.in -o requirements/uv.txt

clean: ## Remove what the other targets made (not the data of a server)
	rm -rf $(VENV) .uv dist .mypy_cache .ruff_cache .pytest_cache bench/results dashboard/node_modules $(dir $(PAGE))

.uv/bin/uv:
	@echo "==> installing uv"
	@$(PYTHON) -m venv .uv && .uv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt

$(BIN)/python: | $(UV)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "gpufleet needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "==> creating $(VENV)"
	@$(UV) venv --quiet --python "$$(command -v $(PYTHON))" $(VENV)

$(VENV)/.run: requirements/runtime.txt pyproject.toml | $(BIN)/python
	@echo "==> installing gpufleet and its dependencies"
	@$(INSTALL) --require-hashes -r requirements/runtime.txt
	@$(INSTALL) --no-deps --no-build-isolation -e packages/kubelite -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml | $(BIN)/python
	@echo "==> installing gpufleet and what its tests use"
	@$(INSTALL) --require-hashes -r requirements/dev.txt
	@$(INSTALL) --no-deps --no-build-isolation -e packages/kubelite -e .
	@touch $@ $(VENV)/.run

# Without Node.js everything else works, so that is said and no reason to stop.
page-if-node:
	@if node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null && command -v npm >/dev/null; then \
		$(MAKE) --no-print-directory $(PAGE) || echo "==> the dashboard could not be built; going on without it"; \
	elif [ ! -f $(PAGE) ]; then \
		echo "==> Node.js 20 or newer is not here: the dashboard is left out"; \
	fi

# The page is tested in a browser, which only root can install; without one those tests say so and are skipped.
browser-if-root:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! command -v chromium chromium-browser google-chrome >/dev/null; then \
		echo "==> installing Chromium, in which the page is tested"; \
		install="env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium"; \
		{ $$install || { apt-get update -qq && $$install; }; } >/dev/null 2>&1 \
			|| echo "==> Chromium could not be installed; the tests of the page are skipped"; \
	fi

$(PAGE): $(PAGE_SOURCES) dashboard/node_modules/.package-lock.json
	@echo "==> building the dashboard"
	@cd dashboard && npm run --silent build -- --logLevel warn && touch ../$@

dashboard/node_modules/.package-lock.json: dashboard/package-lock.json
	@echo "==> installing what the dashboard is built with"
	@cd dashboard && npm ci --silent --no-audit --no-fund && touch node_modules/.package-lock.json
