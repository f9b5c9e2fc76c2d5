"""Test of a checkpoint location beyond ASCII in a POSIX locale."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PROGRAM = r"""
import sys
import spark_statestore
from tests.support.sessions import local_builder

spark = spark_statestore.configure(local_builder("locale", "1g", "local[1]")).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
writer = source.groupBy("value").count().writeStream.outputMode("complete").format("noop")
query = writer.option("checkpointLocation", sys.argv[1] + "/pr\xfcfung").trigger(availableNow=True).start()
query.awaitTermination(60)
"""


@pytest.mark.slow
def test_query_in_a_posix_locale_has_a_location_beyond_ascii(tmp_path: Path) -> None:
    environment = os.environ | {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    (location,) = tmp_path.iterdir()
    assert location.name == "pr\xfcfung"
    assert {path.name for path in (location / "state/0").iterdir()} >= {"0", "1"}
