"""The Spark session that benchmarks run in, and how they tell how far they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.sessions import local_builder

ROOT = Path(__file__).resolve().parents[2]


def start(scratch: Path, **confs: str) -> Any:
    """A session with the provider and the benchmark's jar, built from the sources as they are.

    Parameters
    ----------
    scratch
        Where it keeps what is temporary.
    **confs
        Further settings below ``spark.``, with ``__`` for a dot.
    """
    build = [sys.executable, str(ROOT / "jvm-shim" / "build_shim.py"), "--tests"]
    subprocess.run(build, check=True, stdout=sys.stderr)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    import spark_statestore

    builder = (
        local_builder("benchmarks", memory="6g")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.jars", str(ROOT / "jvm-shim" / "target" / "spark-statestore-tests.jar"))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
    )
    for key, value in confs.items():
        builder.config("spark." + key.replace("__", "."), value)
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def say(text: str) -> None:
    """Tell on the standard error how far the benchmark is."""
    print(text, file=sys.stderr, flush=True)
