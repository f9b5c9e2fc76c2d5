"""Makes an archive of the classes that Spark's JVMs load: a short one takes half of the processor's time with it.

    python -m tests.class_archive

Tests start some hundred JVMs that live for seconds, and most of what these do is to load the same classes. A JVM that
finds no archive, or one that does not fit, goes without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ARCHIVE = ROOT / "jvm-shim" / "target" / "classes.jsa"
# A JVM would say on its standard output that an archive does not fit.
QUIET = "-Xlog:cds*=off"
# The optimising compiler would take as much again, for nothing. Without it Java keeps 48 MiB for compiled code, and is busy
# throwing out what the session of all tests needs again.
SHORT_LIVED = (
    f"-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:SharedArchiveFile={ARCHIVE} {QUIET}"
)


def make() -> None:
    """Run a query as tests do, and keep the classes that its driver has loaded."""
    import spark_statestore

    with tempfile.TemporaryDirectory() as scratch:
        written = Path(scratch, "classes.jsa")
        # Whoever starts a JVM this way waits until it has written the archive.
        command = [
            str(Path(sys.executable).with_name("spark-submit")),
            *("--driver-java-options", f"-XX:ArchiveClassesAtExit={written} {QUIET}"),
            *("--jars", spark_statestore.jar_path()),
            *(__file__, scratch),
        ]
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode or not written.exists():
            # As where Java comes without the archive of its own classes.
            print(f"{done.stdout}{done.stderr}\nno archive of classes was written: tests take longer")
            return
        shutil.move(written, ARCHIVE)


def run_query(scratch: str) -> None:
    """Count for some batches."""
    import spark_statestore
    from tests.sessions import local_builder
    from tests.spark.counting import run_to

    builder = local_builder("classes", memory="1g").config("spark.sql.warehouse.dir", scratch)
    spark = spark_statestore.configure(builder).getOrCreate()
    run_to(spark, f"{scratch}/checkpoint", 2)
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1:]:
        run_query(sys.argv[1])
    else:
        make()
