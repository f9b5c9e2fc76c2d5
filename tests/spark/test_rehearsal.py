"""Code that a session runs ahead of its first batch, in a JVM that cannot run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

_SESSION = """
import time
import spark_statestore
from tests.support.sessions import local_builder
spark = spark_statestore.configure(local_builder("rehearsal", memory="1g")).getOrCreate()
threads = spark._jvm.java.lang.Thread
while any("session-start" in thread.getName() for thread in threads.getAllStackTraces().keySet()):
    time.sleep(0.1)
spark.stop()
"""


@pytest.mark.slow
def test_rehearsal_without_a_native_library_ends_no_thread(built: Path, tmp_path: Path) -> None:
    confs = f'--driver-java-options "-DZstdNativePath={tmp_path}/none" pyspark-shell'
    session = subprocess.run(
        [sys.executable, "-c", _SESSION],
        env=os.environ | {"PYSPARK_SUBMIT_ARGS": confs},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert session.returncode == 0, session.stderr
    # On an executor it would end the JVM.
    assert "Exception in thread" not in session.stderr
