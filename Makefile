# Every target sets up its prerequisites: with Python 3.11+ and Java 17, any target works in a new checkout.

VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
# The virtual environment has the newest Spark; the others are beside it.
NEWEST := 4.3
OLDER := 4.0 4.1 4.2

# Spark's Python workers would otherwise run the system's interpreter.
export PYSPARK_PYTHON := $(CURDIR)/$(PY)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python compiles modules on import; compiling all of them costs half a minute of processor time. To pip, a
# false value of this variable means that it does not compile.
export PIP_NO_COMPILE := 0
# Containers often set it. Each backend, Python worker and collection of tests would then compile all that it
# imports again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup jar classes demo test test-all test-alone golden test-storage test-kafka test-lake test-suites test-yarn soak coverage test-spark mutants mutation bench bench-quick bench-s3 lint lint-python lint-scala format docs wheel release test-release test-lowest audit clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

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
	$(PY) -m pip install --quiet 'hatchling>=1.28' editables 'setuptools>=77' wheel
	$(PY) -m pip install --quiet --no-build-isolation 'pyspark==$(NEWEST).*'
	$(PY) -m pip install --quiet --no-build-isolation --editable '.[test,lint]'
	@touch $@

jar: $(READY) ## build the jars whose sources changed
	$(PY) jvm-shim/build_shim.py --tests

# A PySpark of each older minor version; first on Python's path, it replaces that of the virtual environment.
.spark/%/.ready: | $(READY)
	$(PY) -m pip install --quiet --no-build-isolation --upgrade --target $(@D) 'pyspark==$*.*'
	@touch $@

with_spark = PYTHONPATH='$(if $(filter $(NEWEST),$(1)),,$(CURDIR)/.spark/$(1):)$(CURDIR)'

# Archive of the classes that most JVMs of tests load: see the module.
CLASSES := jvm-shim/target/classes-spark-$(NEWEST).jsa

# The imports compile what PIP_NO_COMPILE left; otherwise the first test file to import them takes 20 s more.
$(CLASSES): tests/support/class_archive.py $(READY) | jar
	$(PY) -c 'import duckdb, hypothesis, matplotlib.pyplot, moto.server, pandas, pyarrow.dataset, pyspark.sql.streaming'
	$(PY) -m tests.support.class_archive

classes: $(CLASSES)

demo: jar ## replay a year of flights as streams, kill the driver halfway, compare with the batch answer
	$(PY) examples/flights_demo.py

# Spark often waits, so two halves of the tests run concurrently; a file's tests stay together.
WORKERS := 2
SHARED := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# first: every part of the product. rest: the other tests of test-all.
TIER := all

test: jar $(CLASSES) ## run the first tier: every part of the product
	$(PY) -m pytest $(SHARED) -m 'not alone' --tier first

test-all: jar $(CLASSES) ## run every test but the long ones; TIER=rest leaves out those of make test
	$(PY) -m pytest $(SHARED) -m 'not alone' --tier $(TIER)
	$(if $(ALONE),$(MAKE) $(ALONE))

# What test-all runs after all else.
ALONE := test-alone

test-alone: jar ## run the tests that measure time, with nothing beside them
	$(PY) -m pytest -m alone

# The tests of what Spark and the store ask of each other, with another Spark. brief leaves out those marked `oldest`.
SPARK := 4.2
SPARK_TIER := spark

test-spark: $(READY) $(if $(filter $(NEWEST),$(SPARK)),,.spark/$(SPARK)/.ready) ## run the tests that face Spark with another minor version: SPARK=4.1
	$(call with_spark,$(SPARK)) $(PY) jvm-shim/build_shim.py --tests
	$(call with_spark,$(SPARK)) $(PY) -m tests.support.class_archive
	$(call with_spark,$(SPARK)) $(PY) -m pytest $(SHARED) -m 'not alone' --tier $(SPARK_TIER)

golden: $(READY) $(if $(filter $(NEWEST),$(SPARK)),,.spark/$(SPARK)/.ready) ## record what queries return on Spark's own stores: SPARK=4.1
	$(call with_spark,$(SPARK)) $(PY) jvm-shim/build_shim.py --tests
	GOLDEN=record $(call with_spark,$(SPARK)) $(PY) -m pytest $(SHARED) -m 'soak or not soak' \
	  --tier $(if $(filter $(NEWEST),$(SPARK)),all,spark)

# Services of test-storage. They are kept in .services/; one that cannot be fetched in time is skipped.
SERVICES := minio azurite hdfs
FETCH_SECONDS := 1200

test-storage: jar $(CLASSES) ## run the tests of storage on real services: SERVICES="azurite hdfs"
	FETCH_SECONDS=$(FETCH_SECONDS) $(PY) -m tests.support.services.fetch $(SERVICES)
	SERVICES='$(SERVICES)' FETCH_SECONDS=0 $(PY) -m pytest $(SHARED) -m storage tests/system/storage

test-kafka: jar $(CLASSES) ## run the tests of queries from Kafka to Kafka, on a broker of their own
	FETCH_SECONDS=$(FETCH_SECONDS) $(PY) -m tests.support.services.fetch kafka kafka-connector
	FETCH_SECONDS=0 $(PY) -m pytest $(SHARED) -m kafka tests/system/kafka

# Of Spark's suites only those that take a few minutes together; SUITES=all has the others too.
SUITES := quick
SUITES_SPARK := 4.2

test-suites: $(READY) .spark/$(SUITES_SPARK)/.ready ## run Spark's own test suites with this store: SUITES=all
	FETCH_SECONDS=$(FETCH_SECONDS) $(PY) -m tests.support.services.fetch spark-suites
	FETCH_SECONDS=0 $(call with_spark,$(SUITES_SPARK)) $(PY) -m pytest \
	  -m 'suites and $(if $(filter all,$(SUITES)),(soak or not soak),not soak)' tests/system/suites

# The newest one that both Delta Lake and Iceberg have releases for.
LAKE_SPARK := 4.1

test-lake: $(READY) .spark/$(LAKE_SPARK)/.ready ## run the tests of queries to Delta Lake and Iceberg: LAKE_SPARK=4.2
	FETCH_SECONDS=$(FETCH_SECONDS) $(call with_spark,$(LAKE_SPARK)) $(PY) -m tests.support.services.fetch delta iceberg
	FETCH_SECONDS=0 $(call with_spark,$(LAKE_SPARK)) $(PY) -m pytest -m lake tests/system/lake

test-yarn: jar $(CLASSES) ## run queries on a YARN cluster, in client mode and as spark-submit starts them in cluster mode
	FETCH_SECONDS=$(FETCH_SECONDS) $(PY) -m tests.support.services.fetch yarn
	FETCH_SECONDS=0 $(PY) -m pytest -m yarn tests/system/yarn

soak: jar $(CLASSES) ## run the long tests too: more examples, more batches
	HYPOTHESIS_PROFILE=soak $(PY) -m pytest $(SHARED) -m '(soak or not soak) and not alone' --timeout 14400
	HYPOTHESIS_PROFILE=soak $(PY) -m pytest -m alone
	$(MAKE) test-spark SPARK=4.1
	$(MAKE) test-spark SPARK=4.2
	$(MAKE) test-suites SUITES=all
	$(MAKE) test-lake
	$(MAKE) test-yarn

# The oldest version of each direct dependency that pyproject.toml admits, in an environment of their own.
build/lowest/.ready: pyproject.toml | $(READY)
	$(PY) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet uv
	$(@D)/bin/uv pip install --quiet --python $(@D)/bin/python --resolution lowest-direct --requirements pyproject.toml --extra test
	@touch $@

LOWEST := unit/files unit/formats unit/operator_state unit/query unit/rows unit/savepoints unit/storage unit/store

test-lowest: build/lowest/.ready ## run the tests of storage, stores and reading with the oldest dependencies that pyproject.toml admits
	build/lowest/bin/python -m pytest -n $(WORKERS) --dist loadfile -m 'not slow and not alone' $(LOWEST:%=tests/%)

# Of all that make setup installs. A package that the service does not know fails, too.
audit: $(READY) ## look for known vulnerabilities of the installed packages
	$(PY) -m venv --clear build/audit
	build/audit/bin/python -m pip install --quiet pip-audit
	build/audit/bin/pip-audit --strict --skip-editable --progress-spinner off --path "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

# Without Spark, and without the processes that tests start.
coverage: $(READY) ## lines and branches of the package that tests/unit reaches
	$(PY) -m pytest tests/unit --cov --cov-report=term

# Lines chosen by hand in all of the product, each with the tests that are to notice it: ONLY="<name> <name>".
mutants: jar $(CLASSES) ## break each guarantee by a change of one line, and check that a test fails, in two hours
	$(PY) -m tests.mutants $(if $(ONLY),--only $(ONLY)) --results build/mutants.md

# Every line of the storage model, with every change that mutmut knows.
mutation: $(READY) ## mutate all lines of formats/, storage/ and store/ with mutmut, and list what its tests do not notice
	$(PY) -m pip install --quiet --no-build-isolation --editable '.[mutation]'
	HYPOTHESIS_PROFILE=mutation $(VENV)/bin/mutmut run
	$(VENV)/bin/mutmut results

bench: jar ## measure side by side with Spark's own stores, in three hours; python -m benchmarks --help has the groups
	$(PY) -m benchmarks

bench-quick: jar ## check the ratios that guard against regressions, in a minute
	$(PY) -m benchmarks --only guard

# QUICK=1: two queries with 8 partitions, in a few minutes. The connector for Spark's stores, 660 MB, is kept in .services/.
bench-s3: jar ## measure whole queries with their checkpoints on S3, beside Spark's stores through s3a, in an hour
	$(PY) -m benchmarks --only s3 $(if $(QUICK),--quick)

lint: lint-python lint-scala ## ruff, mypy in strict mode, layers, dead code, scalac with every warning an error

lint-python: $(READY)
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-logo
	$(PY) -m vulture

lint-scala: $(READY)
	$(PY) jvm-shim/build_shim.py --lint

format: $(READY) ## format the Python sources
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

docs: $(READY) ## build the documentation site into build/site; a broken link or an undocumented name fails
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build

wheel: jar $(OLDER:%=.spark/%/.ready) ## build the wheel into dist/, with a jar for each minor version of Spark
	$(foreach spark,$(OLDER),$(call with_spark,$(spark)) $(PY) jvm-shim/build_shim.py &&) true
	$(PY) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

release: $(READY) ## build the sdist and the wheel of the last commit twice, compare them, and write them into dist/ with their digests
	$(PY) jvm-shim/release.py dist

test-release: $(READY) ## test what make release wrote: each PySpark beside the wheel, and builds of the sdist alone
	RELEASE=dist $(PY) -m pytest -m soak tests/system/packaging/test_sdist.py tests/system/packaging/test_wheel_beside_each_spark.py

clean: ## remove everything that was built
	rm -rf $(VENV) .services .spark build dist mutants jvm-shim/target spark_statestore/jars
