# Every target sets up what it needs: with Python 3.11+ and Java 17, any of them works first.

VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready

# Spark's Python workers would otherwise run the system's interpreter.
export PYSPARK_PYTHON := $(CURDIR)/$(PY)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python compiles what is imported; the rest took half a minute of a processor's time.
export PIP_NO_COMPILE := 1

.DEFAULT_GOAL := help
.PHONY: help setup jar demo test soak coverage mutation bench bench-quick lint format wheel clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(READY) ## make the virtual environment and build the jar

# PYTHON=... chooses the interpreter; otherwise the first one on the PATH that is new enough.
# Without build isolation, so that PySpark (400 MB) is fetched and built once.
$(READY): pyproject.toml
	@python=$$(for python in $(PYTHON) python3 python3.13 python3.12 python3.11 python; do \
	  "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && \
	  echo "$$python" && break; done); \
	if [ -z "$$python" ]; then \
	  echo "no Python 3.11 or newer with venv on the PATH: install one (on Debian also python3-venv)," \
	    "or name it, as in 'make setup PYTHON=/opt/python3.12/bin/python3'" >&2; exit 1; fi; \
	"$$python" -m venv $(VENV)
	$(PY) -m pip install --quiet 'hatchling>=1.27' editables 'setuptools>=77' wheel
	$(PY) -m pip install --quiet --no-build-isolation 'pyspark==4.3.*'
	$(PY) -m pip install --quiet --no-build-isolation --editable '.[test,lint]'
	@touch $@

jar: $(READY) ## build the jars whose sources changed
	$(PY) jvm-shim/build_shim.py --tests

# What most JVMs of tests load, kept ready: see the module.
CLASSES := jvm-shim/target/classes.jsa

$(CLASSES): tests/class_archive.py $(READY) | jar
	$(PY) -m tests.class_archive

demo: jar ## replay a year of flights as streams, kill the driver halfway, compare with the batch answer
	$(PY) examples/flights_demo.py

# Spark waits a lot, so two halves of the tests run at a time; a file's tests stay together.
SHARED := -n 2 --dist loadfile --no-loadscope-reorder

test: jar $(CLASSES) ## run every test
	$(PY) -m pytest $(SHARED) -m 'not alone'
	$(PY) -m pytest -m alone

soak: jar $(CLASSES) ## run the long tests too: more examples, more batches
	HYPOTHESIS_PROFILE=soak $(PY) -m pytest $(SHARED) -m '(soak or not soak) and not alone' --timeout 14400
	HYPOTHESIS_PROFILE=soak $(PY) -m pytest -m alone

# Without Spark: what the model itself is tested by.
coverage: $(READY) ## lines and branches of state/, checkpoint/ and savepoint/ that tests reach
	$(PY) -m pytest tests/checkpoint tests/state tests/savepoint tests/test_edge_cases.py \
	  tests/test_edge_cases_state.py tests/test_edge_cases_savepoints.py --cov --cov-report=term

mutation: $(READY) ## break checkpoint/ in every small way, and see which breaks no test notices
	$(PY) -m pip install --quiet --no-build-isolation --editable '.[mutation]'
	HYPOTHESIS_PROFILE=mutation $(VENV)/bin/mutmut run
	$(VENV)/bin/mutmut results

bench: jar ## measure side by side with Spark's own stores
	$(PY) -m tests.benchmarks

bench-quick: jar ## the ratios that a change must not spoil, in a minute
	$(PY) -m tests.benchmarks --only guard

lint: $(READY) ## ruff, mypy in strict mode, scalac with every warning an error
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	$(PY) jvm-shim/build_shim.py --lint

format: $(READY) ## format the Python sources
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

wheel: jar ## build the wheel into dist/
	$(PY) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean: ## remove everything that was built
	rm -rf $(VENV) dist mutants jvm-shim/target spark_statestore/jars
