# Everything lives in .venv, made on first use. What is up to date is not installed again, so no
# target but the first needs the internet. Stamps are keyed by content: a checkout that touches
# files installs nothing.
PYTHON ?= python3
# Workers of tests, for two cores: one waits for programs that it started a fifth of the time.
JOBS ?= 3
PYTEST_FLAGS ?= --exitfirst
ARGS ?=

BIN := .venv/bin
KEY := $(shell cat pyproject.toml constraints.txt | cksum | cut -d ' ' -f 1)
RUN := .venv/run-$(KEY)
DEV := .venv/dev-$(KEY)
# Without --no-compile a first installation takes 74 s instead of 52 s; Python compiles what it imports.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
# Kernels for GPUs run in Triton's interpreter too. It stands apart from .venv's packages, and tests
# start a process that sees it: torch imports a Triton that it finds, in every other one as well.
# The version is one whose interpreter knows today's NumPy. What compiles for a GPU is thrown away.
TRITON := .venv/triton
TRITON_VERSION := 3.9.0
NATIVE := src/cutaway/kernels/_native.so
WEB := src/cutaway/_web/index.html
# Where this is set, every process compiles torch anew: 8 s of computing for an import of 4.
unexport PYTHONDONTWRITEBYTECODE
# pyright asks the registry for a newer pyright at every run unless told not to.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.PHONY: help chat run serve test quick optimized again ready check types rules page native web oracles interpreter bench pictures tree clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

chat: $(RUN) native  ## talk to the default model; ARGS="--help" lists what it takes
	@$(BIN)/cutaway chat $(ARGS)

run: $(RUN) native web  ## serve the default model and open its page; ARGS as for cutaway run
	@$(BIN)/cutaway run $(ARGS)

serve: $(RUN) native  ## serve the default model by HTTP on this machine; ARGS as for cutaway serve
	@$(BIN)/cutaway serve $(ARGS)

test: $(DEV) native web oracles interpreter page  ## every test that needs neither GPU nor internet, quick ones first
	@$(BIN)/python -m pytest -m "not gpu and not network" -n $(JOBS) $(PYTEST_FLAGS)

quick: $(DEV) native  ## the quick tests alone, with what oracles are there
	@$(BIN)/python -m pytest -m "not gpu and not network and not slow" -n $(JOBS) $(PYTEST_FLAGS)

# Assertions of the package are gone then; what strangers send must be refused all the same.
STRANGERS := tests/host/test_host_gguf.py tests/weights/test_weights_safetensors.py \
  tests/text/test_text_hostile.py tests/engine/test_engine_hostile.py \
  $(addprefix tests/server/test_server_, limits.py errors.py neighbours.py)

optimized: $(DEV) native  ## the quick tests of strangers' input under python -O
	@PYTHONOPTIMIZE=1 $(BIN)/python -m pytest -q -m "not slow" -n $(JOBS) \
	  -W "ignore:assertions not in test modules" $(STRANGERS)

again: $(DEV) native  ## the tests that failed last, one after the other
	@$(BIN)/python -m pytest -m "not gpu and not network" --last-failed --last-failed-no-failures none

check: $(DEV)  ## lint, format, types, import contracts, docs
	@$(MAKE) --no-print-directory -j 2 -O types rules

# What waits for a registry, or has one thread, leaves a core to the others.
ready:  ## check, and all that the tests need, made side by side
	@$(MAKE) --no-print-directory -j 4 -O types rules native web oracles interpreter page

types: $(DEV)  # a source tree that passed is not checked again: that is a minute on a slow machine
	@passed=.venv/typed-$(KEY)-$$(find src -name '*.py' | sort | xargs sha256sum | sha256sum | cut -c 1-16); \
	  test -e $$passed && echo "types: src is as it was when pyright last passed" && exit; \
	  NODE_OPTIONS=--max-semi-space-size=256 $(BIN)/pyright && \
	  { rm -f .venv/typed-*; touch $$passed; }  # room for young objects: 32 s instead of 44

rules: $(DEV)
	@$(BIN)/ruff check --no-cache
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports --no-logo --no-cache  # its cache keeps imports of modules that came later
	@$(BIN)/python tools/tree.py --check
	@$(BIN)/python tools/cli_page.py --check
	@$(BIN)/python tools/check_docs.py

native: $(NATIVE)  ## compile the CPU kernels; without a C++ compiler Cutaway runs on torch

web: $(WEB)  ## build the page; without Node Cutaway runs without it

PAGE_SOURCES := web tests/sampling/golden tests/trace/files
page: web/node_modules/.package-lock.json  # as types: sources that passed are not checked again
	@test -x web/node_modules/.bin/vitest || exit 0; \
	  passed=web/node_modules/.passed-$$(find $(PAGE_SOURCES) -name node_modules -prune -o -type f -print | \
	    LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c 1-16); \
	  test -e $$passed && echo "page: its sources are as they were when they last passed" && exit; \
	  (cd web && npm run --silent check && npm test --silent) && \
	  { rm -f web/node_modules/.passed-*; touch $$passed; }

oracles: $(DEV)  ## fetch the public references that tests compare with, into the user's cache
	@$(BIN)/python tests/fetch_oracles.py </dev/null || \
	  { echo "Oracles are missing: tests marked oracle will be skipped." >&2; \
	    test -z "$$CUTAWAY_REQUIRE_ORACLES"; }

interpreter: $(TRITON)/$(TRITON_VERSION)

$(TRITON)/$(TRITON_VERSION): | $(DEV)
	@echo "Fetching Triton's interpreter, once; 190 MB ..." >&2
	@rm -rf $(TRITON) && mkdir -p $(TRITON)
	@$(BIN)/python -m pip install --quiet --no-compile --no-deps --disable-pip-version-check \
	  --target $(TRITON) triton==$(TRITON_VERSION) >&2 </dev/null && \
	  rm -rf $(TRITON)/triton/backends/*/bin $(TRITON)/triton/backends/*/lib && touch $@ || \
	  echo "Triton is missing: kernels for GPUs will not be tested." >&2

bench: $(DEV) native  ## run every script in bench/, each after a line that says what it prints
	@for script in bench/*.py; do \
	  $(BIN)/python tools/tree.py --first-line "$$script"; $(BIN)/python "$$script" || exit 1; done

pictures: $(DEV) native web  ## make the pictures of the page that README.md shows
	@$(BIN)/python tools/pictures.py --readme
	@$(BIN)/python tools/film.py

tree: $(DEV)  ## write the generated parts of the pages anew: the tree, commands, settings
	@$(BIN)/python tools/tree.py
	@$(BIN)/python tools/cli_page.py

clean:  ## remove all that make made in this folder: .venv, builds, caches
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis
	rm -rf $(NATIVE) src/cutaway/_web web/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Installation speaks on stderr and reads no stdin: `echo question | make chat` prints the answer alone.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "$(PYTHON) is missing or not Python 3.11 to 3.13; name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv .venv >&2 </dev/null || { rm -rf .venv; \
	  echo "$(PYTHON) cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; }

$(RUN): | $(BIN)/python
	@echo "Installing Cutaway into .venv, once; torch takes a minute or two ..." >&2
	@$(INSTALL) -e '.[chat,grammar]' >&2 </dev/null
	@rm -f .venv/run-* .venv/dev-* && touch $@

$(DEV): | $(BIN)/python
	@echo "Installing Cutaway and its development tools into .venv, once; torch takes a minute or two ..." >&2
	@$(INSTALL) -e '.[dev]' >&2 </dev/null
	@rm -f .venv/run-* .venv/dev-* && touch $(RUN) $@

# Exit status 3 is the absence of a compiler, which is allowed; a failing compilation is not.
$(NATIVE): $(shell find native -type f -not -path '*/__pycache__/*') | $(BIN)/python
	@echo "Compiling the CPU kernels, once; a minute or so ..." >&2
	@$(BIN)/python native/build.py >&2 </dev/null || test $$? -eq 3

# As with the compiler: without Node there is no page, and that is allowed.
$(WEB): web/node_modules/.package-lock.json $(shell find web/core web/page web/public -type f) web/index.html web/vite.config.ts
	@test ! -x web/node_modules/.bin/vite || { echo "Building the page ..." >&2; cd web && npm run --silent build >&2 </dev/null; }

web/node_modules/.package-lock.json: web/package.json web/package-lock.json
	@if command -v npm >/dev/null; then echo "Fetching what builds the page, once ..." >&2; \
	  (cd web && npm ci --silent >&2 </dev/null) || echo "npm could not fetch them: no page." >&2; \
	else echo "npm is missing: no page; on Debian: apt-get install nodejs npm" >&2; fi
