"""Tests that messages quoted in docs/troubleshooting.md are raised."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

import spark_statestore
from spark_statestore.backend.__main__ import _missing
from spark_statestore.backend.supervision import _message_of
from spark_statestore.files import check_url, open_file_system
from spark_statestore.files.access import access_error
from spark_statestore.files.object_store_errors import ObjectStoreError
from spark_statestore.options import check
from spark_statestore.storage import CheckpointName
from spark_statestore.store.errors import missing_on_driver, missing_version
from tests.support.paths import ROOT
from tests.unit.files.test_access import raised_by
from tests.unit.query.stored_query import StoredQuery

PAGE = (ROOT / "docs/troubleshooting.md").read_text()
QUOTED = re.findall(r"```text\n(.*?)\n```", PAGE, re.DOTALL)
SHIM = ROOT / "jvm-shim/src/main/scala"

NO_JAR = """
import sys
from pyspark.sql import SparkSession
import spark_statestore
from tests.support.sessions import local_builder

provider = "spark.sql.streaming.stateStore.providerClass"
builder = local_builder("no jar", "1g", "local[1]")
spark = builder.config(provider, spark_statestore.PROVIDER_CLASS).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
writer = spark.readStream.format("rate").load().groupBy("value").count().writeStream.outputMode("complete")

def run():
    writer.format("noop").option("checkpointLocation", sys.argv[1]).start().processAllAvailable()

for call in (
    run,
    lambda: spark_statestore.attach(spark),
    lambda: spark_statestore.configure(SparkSession.builder),
):
    try:
        call()
    except Exception as error:
        print(error)
"""


def pattern(quoted: str) -> re.Pattern[str]:
    """Return the pattern of a quoted message, in which `…` matches anything."""
    return re.compile(".+?".join(map(re.escape, quoted.split("…"))), re.DOTALL)


def message(call: Callable[[], Any]) -> str:
    """Return the message of the error that a call raises or returns."""
    try:
        return str(call())
    except Exception as error:  # noqa: BLE001 - any error is compared with the page
        return str(error)


def _open_with_another_option(url: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            fsspec.config.conf, "s3", {"skip_signature": True, "region": "us-east-1", "version_aware": True}
        )
        files, path = open_file_system(url, retries=0)
        files.read(path)


def _open_in_ascii(url: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsencode", lambda path: path.encode("ascii"))
        open_file_system(url)


@pytest.fixture(scope="module")
def raised(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Messages of errors, without a session."""
    tmp_path = tmp_path_factory.mktemp("raised")
    foreign, files, empty = (tmp_path / name for name in ("foreign", "files", "empty"))
    for path in (foreign, empty):
        path.mkdir(parents=True)
    (foreign / "1.delta").touch()
    query = StoredQuery(files)
    query.run(ann=1)
    store = str(files / "state/0/0")
    running, gaps = StoredQuery(tmp_path / "running"), StoredQuery(tmp_path / "gaps")
    for _ in range(3):
        running.run(ann=1)
        gaps.run(ann=1)
    for log in ("offsets", "commits"):
        (tmp_path / "gaps" / log / "1").unlink()
    no_credentials = raised_by("botocore.exceptions", "NoCredentialsError", "Unable to locate credentials")
    no_bucket = raised_by(
        "botocore.errorfactory", "Missing", "gone", response={"Error": {"Code": "NoSuchBucket"}}
    )
    where = "operator 0, partition 0, store default, version 1"
    local, _ = open_file_system(str(empty))
    store_node = {"operator": 0, "partition": 1, "name": "default", "root": str(files)}
    hung: Any = SimpleNamespace(
        request={"op": "load", "version": 3, "store": store_node}, context=SimpleNamespace(limit=120)
    )
    return [
        message(call)
        for call in (
            lambda: access_error(no_credentials, "s3://bucket/x"),
            lambda: access_error(PermissionError("Access Denied."), "s3://bucket/x"),
            lambda: access_error(no_bucket, "s3://bucket/x"),
            lambda: access_error(ObjectStoreError("no", 403, "RequestTimeTooSkewed"), "s3://bucket/x"),
            lambda: _open_with_another_option("s3://bucket/x"),
            lambda: check_url("oci://bucket/x"),
            lambda: check_url("ftp://host/x"),
            lambda: _open_in_ascii("/prüfung"),
            lambda: _message_of(hung),
            lambda: _missing(ModuleNotFoundError("No module named 'pyarrow'")),
            lambda: check("checkpoints_Dir", "x"),
            lambda: missing_version(local, str(foreign), where, CheckpointName(1)),
            lambda: missing_version(local, str(empty), where, CheckpointName(1)),
            lambda: missing_on_driver(where, CheckpointName(1), None, str(empty)),
            lambda: missing_on_driver(where, CheckpointName(1), None, store),
            lambda: check("checkpointsDir", "bucket/x"),
            lambda: spark_statestore.rollback(running.url, 0),
            lambda: spark_statestore.verify(gaps.url).problems,
        )
    ]


def jar_has(quoted: str) -> bool:
    """Return whether the jar has the parts of a message; literals that the sources join are joined."""
    sources = "\n".join(path.read_text() for path in SHIM.rglob("*.scala"))
    joined = re.sub(r'"\s*\+\s*s?"', "", sources)
    return all(part.strip(" .'") in joined for part in quoted.split("…"))


def test_troubleshooting_page_quotes_messages() -> None:
    assert len(QUOTED) >= 14
    assert all("\n" not in quoted for quoted in QUOTED)


# The first three need a session.
@pytest.mark.parametrize("quoted", QUOTED[3:], ids=lambda quoted: quoted[:40])
def test_quoted_message_is_raised(quoted: str, raised: list[str]) -> None:
    assert any(pattern(quoted).search(message) for message in raised) or jar_has(quoted)


@pytest.mark.slow
@pytest.mark.usefixtures("built")
def test_session_without_the_jar_raises_the_quoted_messages(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", NO_JAR, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
    )
    assert process.returncode == 0, process.stderr
    for quoted in QUOTED[:3]:
        assert pattern(quoted).search(process.stdout), quoted
