# Two commands do everything: `make atlas` (the main job on the built-in model and corpus) and `make test` (all tests, linters, types).
# `make docs` builds the documentation site, `make package` wheel and sdist, checked in an environment of their own.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
OUT ?= atlas
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: atlas test tests test-minimal test-models setup setup-test setup-docs lint style types docs package benchmarks clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt demo-model/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) ./demo-model -e .
	touch $@

setup-test: $(VENV)/.installed-test

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) -e ".[test]"
	touch $@

setup-docs: $(VENV)/.installed-docs

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) -e ".[docs]"
	touch $@

atlas: setup
	$(BIN)/headwise atlas --out $(OUT) --overwrite

lint: style types

style: setup-test
	$(BIN)/ruff check --output-format concise .
	$(BIN)/ruff format --check --quiet .

types: setup-test
	$(BIN)/mypy

# Three workers for two cores: tests that wait for a browser, a server or a child leave one free.
# Compiled before: else in a new checkout each worker compiles all of it.
tests: setup-test
	$(BIN)/python -m compileall -q src
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

# Types are checked beside the tests: by themselves they leave a core idle.
test: setup-test style
	$(MAKE) --no-print-directory -j 2 types tests

# Without any extra: what a plain `pip install headwise` gives must import and run.
test-minimal: setup
	$(PIP) pytest
	$(BIN)/pytest tests/test_minimal.py
	$(BIN)/headwise atlas --analyses surface,offsets --limit 20 --out $(OUT)-minimal --overwrite

# Models with one release of transformers: make test-models TRANSFORMERS=5.15.*
test-models: setup-test
	$(PIP) "transformers==$(TRANSFORMERS)"
	$(BIN)/pytest tests/models

# The site, in site/: what it shows of runs is computed first (minutes) and kept in .work/docs.
docs: setup-docs
	$(BIN)/python tools/docs_site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Wheel and sdist in dist/, checked, installed without the source tree and run there.
package: setup-test
	$(BIN)/python tools/check_package.py --out dist

benchmarks: setup-test
	for script in benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) atlas build dist site .work
