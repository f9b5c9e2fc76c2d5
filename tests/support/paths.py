"""Directories of the checkout that tests use."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Final

from spark_statestore._version import minor_of

ROOT: Final = Path(__file__).resolve().parents[2]

SPARK_MINOR: Final = minor_of(version("pyspark"))
"""Minor version of the installed Spark, such as 4.3."""

TEST_JAR: Final = ROOT / "jvm-shim" / "target" / f"spark-statestore-tests-spark-{SPARK_MINOR}.jar"
"""Jar of the test harness, which `jvm-shim/build_shim.py --tests` builds."""
