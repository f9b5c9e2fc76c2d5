"""Tests of ``doctor`` and ``jar``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from spark_statestore import jar_path
from spark_statestore._version import SUPPORTED_SPARK
from tests.unit.cli.commands import node, output_of
from tests.unit.query.stored_query import StoredQuery

pytestmark = pytest.mark.usefixtures("built")

CHECKS = ["Java", "Spark", "jar", "interpreter", "backend", "storage"]


def program(path: Path, script: str) -> Path:
    """Write a program of the shell."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def failed(*arguments: object) -> dict[str, str]:
    """Return the failed checks with their details."""
    report = node("doctor", *arguments, code=1)
    assert [check["name"] for check in report["checks"]] == CHECKS
    return {check["name"]: check["detail"] for check in report["checks"] if not check["ok"]}


def test_doctor_passes_on_this_machine(tmp_path: Path) -> None:
    report = node("doctor", tmp_path / "state")
    assert report["ok"]
    assert [check["name"] for check in report["checks"]] == CHECKS
    assert "17" in report["checks"][0]["detail"]
    # Nothing is left of what it tried.
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_doctor_names_missing_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    script = "echo 'ModuleNotFoundError: No module named pyarrow' >&2\nexit 1"
    python = program(tmp_path / "python", script)
    file = tmp_path / "file"
    file.touch()
    failures = failed(file, "--python", python)
    assert set(failures) == {"Java", "interpreter", "backend", "storage"}
    assert "pyarrow" in failures["interpreter"]
    assert str(tmp_path) in failures["Java"]
    assert "FAILED" in output_of("doctor", file, "--python", python, code=1)


def test_doctor_refuses_an_old_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin" / "java", "echo 'openjdk version \"11.0.2\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "Java 11.0.2" in failed(tmp_path / "state")["Java"]


def test_jar_prints_the_path() -> None:
    assert output_of("jar").strip() == jar_path()
    assert node("jar", "--spark", "4.3.7")["jar"] == jar_path("4.3.7")
    assert os.path.exists(output_of("jar").strip())
    assert "1.2.3" in output_of("jar", "--spark", "1.2.3", code=1)


def test_doctor_continues_after_an_unexpected_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = program(tmp_path / "python", "echo 'Welcome to this machine'")
    jar = tmp_path / "broken.jar"
    jar.write_bytes(b"not a jar")
    monkeypatch.setattr("spark_statestore.jar_path", lambda *_: str(jar))
    monkeypatch.setattr("spark_statestore.cli.doctor._storage", lambda _: {}["unexpected"])
    failures = failed(tmp_path / "state", "--python", python)
    assert set(failures) == {"jar", "interpreter", "backend", "storage"}
    assert all(failures.values())
    text = output_of("doctor", tmp_path / "state", "--python", python, code=1)
    assert text.count("FAILED") == 4
    assert all(check in text for check in CHECKS)


def checkpoint_check(query: StoredQuery, *arguments: object, code: int = 0) -> tuple[str, dict[str, Any]]:
    """Return the last check, that of the checkpoint, and what each Spark can do."""
    report = node("doctor", query.url, *arguments, code=code)
    assert [check["name"] for check in report["checks"]] == [*CHECKS, "checkpoint"]
    assert report["checks"][-1]["ok"] == (code == 0)
    return report["checks"][-1]["detail"], report["spark"]


def test_doctor_lists_the_sparks_that_continue_a_query(query: StoredQuery) -> None:
    before = query.files()
    detail, support = checkpoint_check(query)
    assert detail == f"continues on Spark {', '.join(SUPPORTED_SPARK)}"
    assert support == {spark: {"continues": True, "reasons": []} for spark in SUPPORTED_SPARK}
    assert query.files() == before


def test_doctor_refuses_a_spark_that_cannot_continue_a_query(query: StoredQuery, tmp_path: Path) -> None:
    query.put("offsets/2", (query.directory / "offsets/2").read_text().replace("v1\n", "v2\n", 1))
    detail, support = checkpoint_check(query, "--spark", "4.1.4", code=1)
    assert detail.startswith(
        "Spark 4.1 cannot continue this query: continues on Spark 4.2, 4.3; not on 4.0, 4.1:"
    )
    assert [spark for spark, answer in support.items() if answer["continues"]] == ["4.2", "4.3"]
    assert all(answer["reasons"] for answer in support.values() if not answer["continues"])
    checkpoint_check(query, "--spark", "4.2")
    assert "does not support Spark 3.5" in checkpoint_check(query, "--spark", "3.5.9", code=1)[0]
    assert "checkpointLocation" in output_of("doctor", tmp_path, "--spark", "4.2", code=2)


def test_doctor_names_a_damaged_checkpoint(query: StoredQuery) -> None:
    (query.directory / "offsets" / "2").write_text("v1\n[]")
    report = node("doctor", query.url, code=1)
    assert {check["name"] for check in report["checks"] if not check["ok"]} == {"checkpoint"}
    assert "offsets/2" in report["checks"][-1]["detail"]
