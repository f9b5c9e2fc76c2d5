"""A class data sharing archive for Spark's JVMs, which halves the processor time of a short one.

    python -m tests.support.class_archive

Tests start some hundred JVMs that run for seconds, and mostly load the same classes. A JVM ignores an archive
that is missing or does not fit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.paths import ROOT, SPARK_MINOR, TEST_JAR

ARCHIVE = TEST_JAR.with_name(f"classes-spark-{SPARK_MINOR}.jsa")
# A JVM would print on its standard output that an archive does not fit.
QUIET = "-Xlog:cds*=off"
# The optimising compiler would take as much time again, without benefit. Without it Java reserves only 48 MiB
# for compiled code, and would discard code that the session of all tests needs again.
WITH_USERS_COLLECTOR = " ".join(
    [
        "-XX:TieredStopAtLevel=1",
        "-XX:ReservedCodeCacheSize=240m",
        f"-XX:SharedArchiveFile={ARCHIVE}",
        QUIET,
    ]
)
# The serial collector has neither threads nor barriers; with 96 MiB of new objects it runs a third as often.
SHORT_LIVED = f"-XX:+UseSerialGC -XX:NewSize=96m {WITH_USERS_COLLECTOR}"


def make() -> None:
    """Run a query as tests do, and archive the classes that its driver has loaded."""
    import pyspark

    import spark_statestore

    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch, "classes.jsa")
        # The exit of a JVM started this way includes writing the archive.
        command = [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            *("--driver-java-options", f"-XX:ArchiveClassesAtExit={archive} {QUIET}"),
            *("--jars", spark_statestore.jar_path()),
            *(__file__, scratch),
        ]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(Path(pyspark.__file__).parents[1]), str(ROOT)]),
            "PYSPARK_PYTHON": sys.executable,
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
        }
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if result.returncode or not archive.exists():
            # Some Java distributions lack the archive of Java's own classes.
            print(f"{result.stdout}{result.stderr}\nno archive of classes was written: tests take longer")
            return
        shutil.move(archive, ARCHIVE)


def run_query(scratch: str) -> None:
    """Count for some batches."""
    import spark_statestore
    from tests.spark.counting import run_to
    from tests.support.sessions import local_builder

    builder = local_builder("classes", memory="1g").config("spark.sql.warehouse.dir", scratch)
    spark = spark_statestore.configure(builder).getOrCreate()
    run_to(spark, f"{scratch}/checkpoint", 2)
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1:]:
        run_query(sys.argv[1])
    else:
        make()
