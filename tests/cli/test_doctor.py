"""``doctor`` finds what is missing, and ``jar`` the jar."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_statestore import jar_path
from tests.cli.running import node, said

CHECKS = ["Java", "Spark", "jar", "interpreter", "backend", "storage"]


def failed(*arguments: object) -> dict[str, str]:
    """What is found to be wrong."""
    found = node("doctor", *arguments, code=1)
    assert [check["name"] for check in found["checks"]] == CHECKS
    return {check["name"]: check["detail"] for check in found["checks"] if not check["ok"]}


@pytest.mark.usefixtures("built")
def test_this_machine_has_all(tmp_path: Path) -> None:
    found = node("doctor", tmp_path / "state")
    assert found["ok"]
    assert [check["name"] for check in found["checks"]] == CHECKS
    assert "17" in found["checks"][0]["detail"]
    # Nothing is left of what it tried.
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.usefixtures("built")
def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ModuleNotFoundError: No module named pyarrow' >&2\nexit 1\n")
    python.chmod(0o755)
    file = tmp_path / "file"
    file.touch()
    found = failed(file, "--python", python)
    assert set(found) == {"Java", "interpreter", "backend", "storage"}
    assert "pyarrow" in found["interpreter"]
    assert str(tmp_path) in found["Java"]
    assert "FAILED" in said("doctor", file, "--python", python, code=1)


@pytest.mark.usefixtures("built")
def test_an_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "Java 11.0.2" in failed(tmp_path / "state")["Java"]


@pytest.mark.usefixtures("built")
def test_jar_prints_the_path() -> None:
    assert said("jar").strip() == jar_path()
    assert node("jar", "--spark", "4.3.7")["jar"] == jar_path("4.3.7")
    assert os.path.exists(said("jar").strip())
    assert "1.2.3" in said("jar", "--spark", "1.2.3", code=1)
