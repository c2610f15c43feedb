# Arkvory. `make` alone prints what there is.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
SOAK_SECONDS ?= 1200
TESTS ?= tests

.PHONY: help run test lint types contracts migrations-check coverage bench soak kills-page consistency-page setup clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' Makefile

run: $(VENV)/ready-to-run ## set everything up and serve on port 8080 (PORT, ARKVORY_DATA_DIR...)
	@exec $(BIN)/arkvory serve

test: $(VENV)/ready-to-test ## set everything up and run every test (TESTS=tests/http for some)
	@$(need_curl)
	if [ "$(TESTS)" = tests ]; then $(BIN)/python -m tests.support.shares; else $(BIN)/python -m pytest $(TESTS); fi

lint: $(VENV)/ready-to-test ## style and spelling
	@$(BIN)/ruff check .
	$(BIN)/codespell

types: $(VENV)/ready-to-test ## mypy, strict
	@$(BIN)/mypy

contracts: $(VENV)/ready-to-test ## who may import whom
	@$(BIN)/lint-imports setup.cfg

migrations-check: $(VENV)/ready-to-test ## the migrations lead to exactly the tables of the models
	@$(BIN)/python -m tests.support.migrations_check

coverage: $(VENV)/ready-to-test ## the tests, with the lines that they reach
	@$(BIN)/coverage run -m pytest $(TESTS)
	$(BIN)/coverage report

bench: $(VENV)/ready-to-test ## ratios to floors and to other servers, in one run
	@$(BIN)/python -m bench

soak: $(VENV)/ready-to-test ## long runs; each takes its share of SOAK_SECONDS (1200), together some six times that
	@ARKVORY_SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -m soak --timeout=0 --capture=no $(TESTS)

kills-page: $(VENV)/ready-to-test ## write the tables of docs/kills.md anew, from what is observed
	@KILLS_PAGE=write $(BIN)/python -m pytest -m "" --timeout=0 -k "not random" tests/kills

consistency-page: $(VENV)/ready-to-test ## write the tables of docs/consistency.md anew, from one long run (twice SOAK_SECONDS and ten minutes)
	@CONSISTENCY_PAGE=write ARKVORY_SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -m soak --timeout=0 --capture=no \
	    tests/cluster/test_visibility.py tests/cluster/test_scale.py tests/faults/test_flips.py tests/faults/test_outages.py

setup: $(VENV)/ready-to-test ## only set up, for running and testing

clean: ## remove what was built (not the data in var/)
	@rm -rf $(VENV) build *.egg-info sdk/build sdk/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -not -path './var/*' -prune -exec rm -rf {} +

# The virtual environment. A file in it says that it is complete, so the second time takes no time.

$(VENV)/ready-to-run: setup.cfg pyproject.toml config/constraints.txt
	@$(make_environment)
	echo "Installing what Arkvory needs (a minute or less, once) ..."
	$(BIN)/python -m pip install --quiet --constraint config/constraints.txt --editable .
	touch $@

$(VENV)/ready-to-test: setup.cfg pyproject.toml config/constraints.txt sdk/setup.cfg sdk/pyproject.toml
	@$(make_environment)
	echo "Installing what Arkvory and its tests need (a minute or so, once) ..."
	$(BIN)/python -m pip install --quiet --constraint config/constraints.txt --editable '.[test,lint]' --editable ./sdk
	touch $@ $(VENV)/ready-to-run

# Debian keeps the means to make virtual environments in a package of its own.
define make_environment
if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then
    find_python() {
        for name in $${PYTHON:-} python3 python3.13 python3.12 python3.11; do
            if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo "$$name"; return; fi
        done
    }
    install() {
        if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            echo "Installing $$* ..."
            apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$$@" >/dev/null
        else
            echo "Arkvory needs Python 3.11 or newer and the means to make virtual environments. Please type:" >&2
            echo "    sudo apt-get update && sudo apt-get install -y $$*" >&2
            exit 1
        fi
    }
    python=$$(find_python)
    if [ -z "$$python" ]; then
        install python3 python3-venv
        python=$$(find_python)
    fi
    if [ -z "$$python" ]; then
        echo "Arkvory needs Python 3.11 or newer: install one, then type: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2
        exit 1
    fi
    if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then
        case "$$("$$python" -c 'import sys; print(sys.executable)')" in
            /usr/bin/python3 | /usr/bin/python3.*) install "$$("$$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" ;;
            *) echo "$$python cannot make virtual environments (no ensurepip): take another one with PYTHON=/path/to/python3" >&2; exit 1 ;;
        esac
    fi
    echo "Setting up $(VENV) with $$("$$python" --version) ..."
    rm -rf $(VENV)
    "$$python" -m venv $(VENV)
fi
endef

# The one client that is no Python package.
define need_curl
if ! command -v curl >/dev/null; then
    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq curl >/dev/null
    else
        echo "curl is missing, its tests will be skipped. To run them: sudo apt-get install -y curl" >&2
    fi
fi
endef
