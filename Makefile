# Every target sets up .venv by itself; nothing but make and Python 3.11+ has to be there before.
SHELL := /bin/sh
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Override with e.g. `make test PYTHON=/opt/python3.12/bin/python3`.
PYTHON ?=
JOBS ?= 2
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=

VENV := .venv
STAMP := $(VENV)/.installed
PY := $(VENV)/bin/python

# pyright would otherwise ask the registry for its newest release at every run.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help venv demo test lint format bench wheel clean

help: ## Show the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

venv: $(STAMP) ## Create .venv with the tested versions (the other targets do it when needed)

# `python -m` throughout: scripts in .venv/bin name their folder and break when it is moved.
demo: $(STAMP) ## Run the demo: embedded Postgres, 60+ tools, answered questions
	@$(PY) -m agent.cli demo $(DEMO_ARGS)

test: $(STAMP) ## Run the tests; TEST_DATABASE_URL names a server to use instead of the embedded one
	@$(PY) -m pytest -n $(JOBS) $(PYTEST_ARGS)

lint: $(STAMP) ## Check style and types
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m pyright --pythonpath $(PY)

format: $(STAMP) ## Format the code, mend what ruff can mend, make the sync registry from the async one
	@$(PY) -m ruff check --fix .
	@$(PY) -m scripts.make_sync
	@$(PY) -m ruff format .

bench: $(STAMP) ## Run the benchmarks
	@$(PY) -m benchmarks $(BENCH_ARGS)

wheel: $(STAMP) ## Build the wheel into dist/
	@$(PY) -m hatchling build -t wheel

clean: ## Remove .venv, caches and build output; data of the embedded server stays
	@rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@set -e; \
	is_new_enough() { "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }; \
	if ! is_new_enough $(PY); then \
	  python=; \
	  for candidate in $(if $(PYTHON),"$(PYTHON)",python3.11 python3 python3.12 python3.13 python); do \
	    if is_new_enough "$$candidate"; then python=$$candidate; break; fi; \
	  done; \
	  if [ -z "$$python" ]; then \
	    echo "toolrag needs Python 3.11 or newer$(if $(PYTHON),$(comma) and $(PYTHON) is not,)." \
	      "Install it, or name one: make PYTHON=/path/to/python3.11" >&2; exit 1; \
	  fi; \
	  echo "Creating $(VENV) with $$("$$python" --version) ..." >&2; \
	  "$$python" -m venv --clear $(VENV) || { \
	    echo "Python's venv module does not work. On Debian and Ubuntu: apt install python3-venv" >&2; \
	    exit 1; }; \
	fi; \
	echo "Installing the tested versions of constraints.txt (once, about a minute) ..." >&2; \
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'; \
	touch $(STAMP)

comma := ,
