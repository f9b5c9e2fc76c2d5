"""Runs Spark's own test suites, in ScalaTest, with this store in the place of Spark's."""

from __future__ import annotations

import os
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

import spark_statestore
from tests.support.paths import TEST_JAR

PACKAGE: Final = "org.apache.spark.sql."

_EXTENSIONS: Final = "spark.sql.extensions"

# Suites that set RocksDB themselves start with this store, too.
_REPLACE: Final = "org.apache.spark.sql.statestore.ReplaceRocksDB"

# Those of the driver's own start, which come too late for a JVM that runs already.
_SHIPPED: Final = ("spark.jars", "spark.submit.pyFiles", "spark.plugins")

# Packages of the JDK that Spark's launcher opens.
_OPENED: Final = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs"),
    *("sun.security.action", "sun.util.calendar"),
)

_LOG4J: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
"""


def run(suites: Sequence[str], home: Path, directory: Path) -> dict[str, dict[str, str | None]]:
    """Run suites of a directory in one JVM.

    Parameters
    ----------
    suites
        Names of their classes, below `PACKAGE`.
    home
        Directory of the suites, see `tests.support.services.spark_suites`.
    directory
        Empty directory for what they write.

    Returns
    -------
    dict of dict
        By the suite's simple name and the test's name: None if it passed, else the message of its failure.
    """
    reports, log = directory / "reports", directory / "log"
    (directory / "tmp").mkdir()
    (directory / "log4j2.properties").write_text(_LOG4J)
    properties = {
        **_settings(),
        "spark.testing": "true",
        "spark.test.home": str(directory),
        "spark.ui.enabled": "false",
        "java.io.tmpdir": str(directory / "tmp"),
        "log4j2.configurationFile": (directory / "log4j2.properties").as_uri(),
        "io.netty.tryReflectionSetAccessible": "true",
    }
    jars, shim = Path(pyspark.__file__).parent / "jars", spark_statestore.jar_path()
    command = [
        *("java", "-Xmx3g", "-Xss4m"),
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
        *(f"-D{key}={value}" for key, value in properties.items()),
        *("-cp", os.pathsep.join([f"{home}/classes", f"{home}/lib/*", shim, str(TEST_JAR), f"{jars}/*"])),
        *("org.scalatest.tools.Runner", "-R", str(home / "classes"), "-u", str(reports), "-oW"),
        *(word for suite in suites for word in ("-s", PACKAGE + suite)),
    ]
    with open(log, "w") as output:
        # Its exit code says that a test failed, which the reports say by name.
        subprocess.run(
            command,
            cwd=directory,
            env=os.environ | {"SPARK_TESTING": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    results = dict(map(_results_of, reports.glob("*.xml")))
    missing = {suite.rpartition(".")[2] for suite in suites} - results.keys()
    assert not missing, f"no result of {sorted(missing)}:\n{log.read_text()[-4000:]}"
    return results


def _settings() -> dict[str, str]:
    builder = SparkSession.Builder()
    spark_statestore.configure(builder)
    settings = {key: str(value) for key, value in builder._options.items() if key not in _SHIPPED}
    return settings | {_EXTENSIONS: f"{_REPLACE},{settings[_EXTENSIONS]}"}


def _results_of(report: Path) -> tuple[str, dict[str, str | None]]:
    """Return a suite's simple name and its results, without ignored tests."""
    suite = ET.parse(report).getroot()
    results: dict[str, str | None] = {}
    for test in suite.iter("testcase"):
        failures = [*test.iter("failure"), *test.iter("error")]
        if failures:
            results[test.attrib["name"]] = failures[0].get("message", "").strip() or "failed"
        elif test.find("skipped") is None:
            results[test.attrib["name"]] = None
    return suite.attrib["name"].rpartition(".")[2], results
