# Outlast's commands. Each one does its own set-up in .venv: Python >= 3.11 and make are enough (the demo also needs git).
#
#   make demo                 the agent that survives being killed (ARGS="--yes" runs it unattended)
#   make test                 all tests but the long searches
#   make check                lint, format, types, layers, sizes (each a target of its own; -k shows all faults)
#   make soak                 the long searches
#   make import-time          what `import outlast` costs
#   make wheel                build the package into dist/
#   make clean                remove what the others made
#
# Another interpreter: make test PYTHON=python3.12 VENV=.venv312

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# Tests that run at the same time.
JOBS ?= 2
# Passed on to pytest: make test TESTS=tests/unit/replay
TESTS ?= tests

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --no-input

.PHONY: help demo test check lint format types layers sizes soak import-time wheel clean

help:
	@sed -n '3,11s/^# *//p' Makefile

demo: $(VENV)/.installed-demo
	@$(BIN)/outlast demo $(ARGS)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(JOBS) $(TESTS) $(ARGS)

check: lint format types layers sizes

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check

format: $(VENV)/.installed-dev
	$(BIN)/ruff format --check

types: $(VENV)/.installed-dev
	$(BIN)/pyright --pythonpath $(BIN)/python

layers: $(VENV)/.installed-dev
	$(BIN)/lint-imports

sizes: $(VENV)/.installed-dev
	$(BIN)/python tools/size.py

# All laws at their soak size first, then whatever else is long, and every kill point (pytest says 5 when there is none).
soak: export OUTLAST_CRASH = all
soak: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(JOBS) --hypothesis-profile=soak --timeout=7200 -m "" tests/property $(ARGS)
	$(BIN)/python -m pytest -n $(JOBS) --hypothesis-profile=soak --timeout=7200 -m "soak or crash" --ignore=tests/property tests $(ARGS) || test $$? -eq 5

import-time: $(VENV)/.installed-demo
	@$(BIN)/python tools/import_time.py $(ARGS)

wheel: $(VENV)/.installed-demo
	rm -rf dist
	$(PIP) wheel --no-deps --wheel-dir dist .
	@ls dist

clean:
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests tools examples -name __pycache__ -type d -prune -exec rm -rf {} +

# Installed anew whenever pyproject.toml has changed. Dependency groups need pip 25.1.
$(VENV)/.installed-dev: pyproject.toml | $(VENV)/.created
	@echo "Installing Outlast and its development tools into $(VENV) ..."
	@$(PIP) install "pip>=25.1"
	@$(PIP) install --editable ".[demo]" --group dev
	@touch $(VENV)/.installed-demo $@

$(VENV)/.installed-demo: pyproject.toml | $(VENV)/.created
	@echo "Installing Outlast into $(VENV) ..."
	@$(PIP) install --editable ".[demo]"
	@touch $@

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Outlast needs Python 3.11 or newer; '$(PYTHON)' is not. Try: make $(or $(MAKECMDGOALS),demo) PYTHON=python3.12" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
	  rm -rf $(VENV); \
	  echo "No virtual environment could be made. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@touch $@
