# Everything the project does, by one word. Needs Python 3.11+ with venv, and make; the rest goes into .venv and .lifecycle.
# Recipes name files from here on, never from the root: the clone may lie anywhere, also below a folder with spaces.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

# `make demo STACK=cluster`, `up`, `down`, `status`: tables in an object store behind a REST catalog, tasks on a Spark cluster of this machine.
ifeq ($(origin STACK),command line)
export LIFECYCLE_STACK := $(STACK)
endif

# Where the shell forbids byte code, every process that a test starts would compile the project anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo up down status test test-fast hunt check docs smoke bench lock install

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1@\2/p' Makefile | while IFS=@ read -r name text; do printf '  make %-10s %s\n' "$$name" "$$text"; done

demo: install ## load real topics, let Airflow remove what is old, show what went and why, stop everything; STACK=cluster: on a cluster
	@$(BIN)/lifecycle demo

up: install ## start PostgreSQL and Airflow and leave them running; prints address and login
	@$(BIN)/lifecycle up

down: install ## stop everything that was started; the data stays in .lifecycle, but for a cluster's
	@$(BIN)/lifecycle down

status: install ## say what runs
	@$(BIN)/python -m lifecycle_local status

# Three workers for two cores: one of them waits for Airflow most of the time.
test: install ## all tests but what `make hunt` alone does, with Spark, PostgreSQL, Airflow and a NATS server
	@$(BIN)/python -m pytest -n 3 -m "not hunt"

test-fast: install ## tests of pure code: no JVM, no server, no Airflow; three minutes
	@$(BIN)/python -m pytest -n 2 tests/unit tests/contract -m "not hunt and not spark and not postgres and not redis and not airflow"

hunt: install ## what takes too long for each change (docs/hunt.md), and twenty times as many generated logs, other ones each time
	@$(BIN)/python -m pytest -n 2 -m "hunt or generated" --hypothesis-profile=hunt

check: install ## lint, format, types, import rules, plain sentences
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m bench.plain

# Warnings are errors: a broken link or anchor, a page outside the index, a docstring that does not parse. -E: code changes without its page.
docs: install ## build the documentation as a site, checking every link within it: build/docs/index.html
	@$(BIN)/python -m sphinx -q -E -n -W --keep-going docs build/docs

smoke: install ## run every benchmark at a twentieth of its size; an error fails it, a time never does
	@$(BIN)/python -m bench smoke

bench: install ## measure every figure that the documents state
	@$(BIN)/python -m bench

lock: install ## compile requirements.in to requirements.txt, pinned and hashed
	@$(BIN)/uv pip compile --quiet --generate-hashes --universal --python-version 3.11 requirements.in -o requirements.txt

install: $(STAMP) ## fill .venv with what requirements.txt names; nothing to do the second time

# A virtual environment knows its own path and its interpreter: in a clone that was moved, or after either changed, it is made anew.
ifneq ($(shell cat $(STAMP) 2>/dev/null && $(BIN)/python -c ''),$(CURDIR))
.PHONY: $(STAMP)
$(STAMP): CLEAR := --clear
endif

$(STAMP): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; name one: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "Python's venv is missing; on Debian and Ubuntu it is the package python3-venv"; exit 1; }
	@echo "Installing what requirements.txt names into .venv, once ..."
	@$(PYTHON) -m venv $(CLEAR) .venv
	@$(BIN)/python -P include/lifecycle_local/install.py
	@pwd -P > $(STAMP)
