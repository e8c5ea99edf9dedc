# `make` lists the targets.

PYTHON ?=
DEMO_FLAGS ?= --duration 60s --target 2s --max-slots 8

EXTRAS := spark,java,kafka,postgres,plot,sim,bench,dev
SPARKS := 4.2 4.3
MATRIX := $(SPARKS:%=.venv-%)
VENVS := .venv $(MATRIX)
BIN := .venv/bin
UNIT := not spark and not kafka and not postgres and not crash and not cluster and not soak and not long

# a matrix environment .venv-4.2 holds PySpark 4.2; .venv the newest
SPARK_PIN = $(if $(filter $*,$(MATRIX)),'pyspark==$(*:.venv-%=%).*')
PYTHONS = $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)
PYTHON_FITS := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PIP_FITS := import pip, sys; sys.exit([int(part) for part in pip.__version__.split(".")[:2]] < [21, 3])

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo lint check test soak test-matrix clean $(SPARKS:%=test-matrix-%)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

setup: .venv/.installed .venv/kafka/.fetched .venv/.postgres ## make .venv with Springtide and all it needs; PYTHON=… chooses the Python

demo: setup ## run the tweets topology for a minute, on Kafka where Maven can fetch it; DEMO_FLAGS=… changes how
	$(BIN)/springtide demo $(DEMO_FLAGS)

lint: setup ## form, types and layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint ## lint and the short unit tests, without Spark, within 3 minutes
	$(BIN)/pytest -n 2 --dist worksteal -m "$(UNIT)"

test: lint ## lint and every test but those of make soak
	$(BIN)/pytest -n 2 --dist worksteal -m "not soak"

soak: setup ## the tests that take hours
	$(BIN)/pytest -n 2 --dist worksteal -m "soak"

test-matrix: $(SPARKS:%=test-matrix-%) ## the tests on each Spark that is supported, each in a .venv of its own

$(SPARKS:%=test-matrix-%): test-matrix-%: .venv-%/.installed .venv-%/kafka/.fetched .venv/.postgres
	.venv-$*/bin/pytest -n 2 --dist worksteal -m "not soak"

clean: ## remove caches, builds and what Spark leaves behind; keeps runs/ and the virtual environments
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	rm -rf spark-warehouse metastore_db derby.log
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENVS:%=%/.installed): %/.installed: pyproject.toml | %/bin/python
	@$*/bin/python -c '$(PIP_FITS)' 2>/dev/null || \
	  { $*/bin/python -m ensurepip && $*/bin/python -m pip install --quiet --upgrade pip; }
	@echo "Installing Springtide and what it needs into $*; the first time takes minutes."
	@$*/bin/python -m pip install --quiet --editable '.[$(EXTRAS)]' $(SPARK_PIN)
	@touch $@

# tests of Kafka skip where its broker cannot be fetched, and say so
$(VENVS:%=%/kafka/.fetched): %/kafka/.fetched: tests/servers/pom.xml | %/bin/python
	@rm -rf $*/kafka && mkdir -p $*/kafka
	@if mvn -B -q -ntp -f $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory='$(CURDIR)/$*/kafka'; \
	then touch $@; else echo "No Kafka for the tests: Maven (Debian, Ubuntu: apt install maven) could not fetch it." >&2; fi

# the server is the system's; tests of PostgreSQL skip where it is missing, and say so. `make` looks for it each time
.PHONY: .venv/.postgres
.venv/.postgres:
	@if ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get -qq update >/dev/null && \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends postgresql >/dev/null; \
	then echo "Installed PostgreSQL for the tests."; \
	else echo "No PostgreSQL for the tests: install the package postgresql (Debian, Ubuntu: apt install postgresql)." >&2; fi

$(VENVS:%=%/bin/python): %/bin/python:
	@for python in $(PYTHONS); do \
	  if "$$python" -c '$(PYTHON_FITS)' 2>/dev/null; then exec "$$python" -m venv --clear $*; fi; \
	done; \
	echo "Springtide needs Python 3.11 or later with its venv module; looked for: $(PYTHONS)." >&2; \
	echo "Install it (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python)," >&2; \
	echo "or name the one to use: make setup PYTHON=/path/to/python3" >&2; \
	exit 1
