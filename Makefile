# Outlast's commands. Each one does its own set-up in .venv: Python >= 3.11 and make are enough (the demo also needs git).
#
#   make demo                 the agent that survives being killed (ARGS="--yes" runs it unattended)
#   make test                 all tests but the long ones
#   make check                lint, format, types, layers, sizes (each a target of its own; -k shows all faults)
#   make replay               the golden journals, on every Python that is found (PYTHONS="python3.12 /opt/…/python3.14")
#   make postgres             what PostgreSQL is tested with, on an installed server: the newest, or POSTGRES=/usr/lib/postgresql/15/bin
#   make slow                 what is too long for each test run: whole enumerations, and engines broken line by line
#   make soak                 the long searches
#   make bench                scenarios S1 to S7 on SQLite and PostgreSQL, one JSON line each (ARGS="S2 --on sqlite --repeat 3")
#   make import-time          what `import outlast` costs
#   make wheel                build the package into dist/
#   make clean                remove what the others made
#
# Another interpreter: make test PYTHON=python3.12 VENV=.venv312

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# Tests that run at the same time: many wait for processes, so one more than the two cores of a small machine.
JOBS ?= 3
# Interpreters of make replay, each in an environment of its own: those on the PATH, and those that pyenv keeps off it.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14 $(wildcard $(HOME)/.pyenv/versions/*/bin/python3)
# Passed on to pytest: make test TESTS=tests/unit/replay
TESTS ?= tests

# The folder of an installed PostgreSQL's programs, as Debian and Ubuntu place them; all other tests use that of the wheel.
POSTGRES ?= $(shell ls -d /usr/lib/postgresql/*/bin/postgres 2>/dev/null | sort -V | tail -n 1 | xargs -r dirname)
POSTGRES_TESTS = tests/conformance/test_postgres.py tests/unit/store/postgres tests/unit/test_postgres_server.py \
  tests/unit/cli/test_migrate.py tests/cases/test_listening.py tests/cases/test_listening_workers.py tests/crash/test_postgres_chaos.py

# Kill points: a part chosen by the seed, or OUTLAST_CRASH=all; see tests/crash/kill_point.py.
ifndef OUTLAST_CRASH_SEED
OUTLAST_CRASH_SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
endif
export OUTLAST_CRASH_SEED

# Tests start hundreds of processes. Each would compile all of Outlast anew where the environment says that nothing is kept.
test postgres slow soak: export PYTHONDONTWRITEBYTECODE =

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --no-input

.PHONY: help demo bench test postgres slow replay replay-here check lint format types layers sizes soak import-time wheel clean

help:
	@sed -n '3,14s/^# *//p' Makefile

demo: $(VENV)/.installed-demo
	@$(BIN)/outlast demo $(ARGS)

test: $(VENV)/.installed-dev
	@echo "OUTLAST_CRASH=$(OUTLAST_CRASH) OUTLAST_CRASH_SEED=$(OUTLAST_CRASH_SEED): which kill points are tried with real processes"
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(TESTS) $(ARGS)

postgres: $(VENV)/.installed-dev
	@[ -x "$(POSTGRES)/postgres" ] || { \
	  echo "No PostgreSQL server is at '$(POSTGRES)'. On Debian and Ubuntu: apt install postgresql; else name the folder of its programs: make postgres POSTGRES=…" >&2; exit 1; }
	@$(POSTGRES)/postgres --version
	OUTLAST_POSTGRES=$(POSTGRES) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(POSTGRES_TESTS) $(ARGS)

slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "slow and not soak" $(TESTS) $(ARGS)

# A name on the PATH may be a stub that starts nothing, so each is tried. Says last which were found and which were not.
replay:
	@found=; missing=; failed=; \
	for python in $(PYTHONS); do \
	  version=$$($$python -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || version=; \
	  case "$$version" in 2.*|3.[0-9].*|3.10.*) continue;; esac; \
	  if [ -z "$$version" ]; then missing="$$missing $$python"; continue; fi; \
	  case " $$found " in *" $$version "*) continue;; esac; \
	  echo "==> Python $$version"; found="$$found $$version"; \
	  $(MAKE) --no-print-directory replay-here PYTHON="$$python" VENV=".venv-replay-$$version" || failed="$$failed $$version"; \
	done; \
	echo "replayed on:$${found:- none}"; \
	if [ -n "$$missing" ]; then echo "not on the PATH:$$missing (name others with PYTHONS=)"; fi; \
	if [ -n "$$failed" ]; then echo "failed on:$$failed"; exit 1; fi; \
	[ -n "$$found" ]

replay-here: $(VENV)/.installed-test
	@$(BIN)/python -m pytest --quiet tests/replay $(ARGS)

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

# All laws at their soak size first, then whatever else is long, and every pair of kill points (pytest says 5 when there is none).
soak: export OUTLAST_CRASH = soak
soak: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(JOBS) --hypothesis-profile=soak --timeout=7200 -m "" tests/property $(ARGS)
	$(BIN)/python -m pytest -n $(JOBS) --hypothesis-profile=soak --timeout=7200 -m "soak or crash" --ignore=tests/property tests $(ARGS) || test $$? -eq 5

bench: $(VENV)/.installed-test
	@$(BIN)/python -m bench $(ARGS)

import-time: $(VENV)/.installed-demo
	@$(BIN)/python tools/import_time.py $(ARGS)

wheel: $(VENV)/.installed-demo
	rm -rf dist
	$(PIP) wheel --no-deps --wheel-dir dist .
	@ls dist

clean:
	rm -rf $(VENV) .venv-replay-* dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests tools examples -name __pycache__ -type d -prune -exec rm -rf {} +

# Installed anew whenever pyproject.toml has changed. Dependency groups need pip 25.1.
$(VENV)/.installed-dev: pyproject.toml | $(VENV)/.created
	@echo "Installing Outlast and its development tools into $(VENV) ..."
	@$(PIP) install "pip>=25.1"
	@$(PIP) install --editable ".[demo]" --group dev
	@touch $(VENV)/.installed-demo $@

$(VENV)/.installed-test: pyproject.toml | $(VENV)/.created
	@echo "Installing Outlast and what its tests need into $(VENV) ..."
	@$(PIP) install "pip>=25.1"
	@$(PIP) install --editable . --group test
	@touch $@

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
