"""Queries whose whole checkpoint is on S3, served by moto, without a Hadoop connector."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.paths import ROOT, TEST_JAR
from tests.system.object_stores.test_s3 import bucket, endpoint, pytestmark  # noqa: F401
from tests.system.object_stores.whole_checkpoint import QUERIES
from tests.system.upgrades.cases import CASES, SCHEMAS, input_of

SECONDS = 240


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the input."""
    directory = tmp_path_factory.mktemp("input")
    for name in {CASES[query].reads for query in QUERIES}:
        (directory / name).mkdir()
        for number, rows in enumerate(input_of(name)):
            path = directory / name / f"{number}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, SCHEMAS[name]), path)
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return directory


def start(checkpoints: str, given: Path, output: Path, checkpoint_format: int) -> subprocess.Popen[str]:
    program = "tests.system.object_stores.whole_checkpoint"
    arguments = [checkpoints, str(given), str(output), str(checkpoint_format)]
    return subprocess.Popen(
        [sys.executable, "-m", program, *arguments],
        cwd=ROOT,
        env=os.environ | {"TEST_JAR": str(TEST_JAR), "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(program: subprocess.Popen[str]) -> None:
    _, errors = program.communicate(timeout=SECONDS)
    assert program.returncode == 0, errors[-4000:]


def outputs(file: Path) -> dict[tuple[str, int], list[str]]:
    """Return the rows by query and batch, and check that a repeated batch has the same rows."""
    found: dict[tuple[str, int], list[str]] = {}
    for line in file.read_text().splitlines():
        name, number, rows = json.loads(line)
        assert found.setdefault((name, number), rows) == rows
    return found


@pytest.mark.parametrize(
    ("checkpoint_format", "killed"),
    [
        pytest.param(2, QUERIES[1:2], id="v2"),
        pytest.param(1, QUERIES, id="v1, each", marks=pytest.mark.soak),
        pytest.param(2, QUERIES, id="v2, each", marks=pytest.mark.soak),
    ],
)
def test_killed_queries_resume_from_s3(
    built: Path,
    bucket: str,  # noqa: F811
    given: Path,
    tmp_path: Path,
    checkpoint_format: int,
    killed: Sequence[str],
) -> None:
    local, remote = tmp_path / "local.jsonl", tmp_path / "remote.jsonl"
    finish(start(str(tmp_path / "checkpoints"), given, local, checkpoint_format))
    expected = outputs(local)
    assert {name for name, _ in expected} == set(QUERIES)
    url = f"s3://{bucket}/checkpoints"
    # Killed after a batch of the query.
    for query in killed:
        program = start(url, given, remote, checkpoint_format)
        assert program.stdout is not None
        jvm = json.loads(program.stdout.readline())["jvm"]
        deadline = time.monotonic() + SECONDS
        while not any(name == query for name, _ in (outputs(remote) if remote.exists() else {})):
            assert program.poll() is None, program.communicate()[1][-4000:]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(jvm, signal.SIGKILL)
        program.kill()
        program.communicate()
    finish(start(url, given, remote, checkpoint_format))
    assert outputs(remote) == expected
    assert fsspec.filesystem("s3").find(f"{bucket}/checkpoints/0/commits")
