"""The build of the jar: when it compiles, and what it says when it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
JAR = "spark_statestore/jars/spark-statestore-spark-4.3.jar"


@pytest.fixture
def checkout(built: Path, tmp_path: Path) -> Path:
    """A copy of what the jar is built from, with the jar."""
    copy = tmp_path / "checkout"
    shutil.copytree(ROOT / "jvm-shim", copy / "jvm-shim", ignore=shutil.ignore_patterns("target"))
    shutil.copytree(ROOT / "spark_statestore", copy / "spark_statestore")
    return copy


def build(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(checkout / "jvm-shim/build_shim.py")],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_nothing_is_compiled_when_nothing_changed(checkout: Path) -> None:
    before = (checkout / JAR).stat().st_mtime_ns
    run = build(checkout)
    assert run.returncode == 0, run.stderr
    assert "compiling" not in run.stderr
    assert (checkout / JAR).stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_changed_option_is_compiled_in(checkout: Path) -> None:
    options = checkout / "spark_statestore/options.py"
    options.write_text(options.read_text().replace('"numRetained"', '"numKept"'))
    run = build(checkout)
    assert run.returncode == 0, run.stderr
    assert "compiling the shim for Spark 4.3" in run.stderr
    assert b'"numKept"' in zipfile.ZipFile(checkout / JAR).read("spark-statestore-options.json")


@pytest.mark.slow
def test_an_error_of_the_compiler_is_shown_and_the_old_jar_stays(checkout: Path) -> None:
    before = (checkout / JAR).read_bytes()
    source = checkout / "jvm-shim/src/main/scala/org/apache/spark/sql/statestore/Errors.scala"
    source.write_text(source.read_text() + "\nobject Broken { val number: Int = true }\n")
    run = build(checkout)
    assert run.returncode == 1
    assert "type mismatch" in run.stderr
    assert (checkout / JAR).read_bytes() == before


def test_a_missing_java_is_named(checkout: Path, tmp_path: Path) -> None:
    (checkout / JAR).unlink()
    run = build(checkout, JAVA_HOME=str(tmp_path))
    assert run.returncode == 1
    assert "a Java 17 runtime is needed: set JAVA_HOME" in run.stderr


def test_an_old_java_is_named(checkout: Path, tmp_path: Path) -> None:
    (checkout / JAR).unlink()
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    run = build(checkout, JAVA_HOME=str(tmp_path))
    assert run.returncode == 1
    assert "Java 17 or newer is needed" in run.stderr
    assert "11.0.2" in run.stderr


def test_a_missing_pyspark_is_named(checkout: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-S", str(checkout / "jvm-shim/build_shim.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "pip install 'pyspark==4.3.*'" in run.stderr
