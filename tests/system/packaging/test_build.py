"""Build of the jar: recompilation only after changes, and errors with a remedy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from spark_statestore._version import minor_of
from tests.support.commands import run
from tests.support.paths import ROOT, SPARK_MINOR

JAR = f"spark_statestore/jars/spark-statestore-spark-{SPARK_MINOR}.jar"


@pytest.fixture
def checkout(built: Path, tmp_path: Path) -> Path:
    """Return a copy of the files that the jar is built from, with the jar."""
    copy = tmp_path / "checkout"
    shutil.copytree(ROOT / "jvm-shim", copy / "jvm-shim", ignore=shutil.ignore_patterns("target"))
    shutil.copytree(ROOT / "spark_statestore", copy / "spark_statestore")
    shutil.copy(ROOT / "LICENSE", copy)
    return copy


def build(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(checkout / "jvm-shim/build_shim.py")]
    return run(command, env=os.environ | environment, may_fail=True)


def test_build_skips_unchanged_sources(checkout: Path) -> None:
    before = (checkout / JAR).stat().st_mtime_ns
    result = build(checkout)
    assert result.returncode == 0, result.stderr
    assert "compiling" not in result.stderr
    assert (checkout / JAR).stat().st_mtime_ns == before


@pytest.mark.slow
@pytest.mark.soak
def test_build_includes_a_changed_option(checkout: Path) -> None:
    options = checkout / "spark_statestore/options.py"
    options.write_text(options.read_text().replace('"storageRetries"', '"storageAttempts"'))
    result = build(checkout)
    assert result.returncode == 0, result.stderr
    assert f"compiling the shim for Spark {SPARK_MINOR}" in result.stderr
    assert b",storageAttempts," in zipfile.ZipFile(checkout / JAR).read("spark-statestore.properties")


@pytest.mark.slow
def test_build_shows_compiler_errors_and_keeps_the_old_jar(checkout: Path) -> None:
    before = (checkout / JAR).read_bytes()
    source = checkout / "jvm-shim/src/main/scala/org/apache/spark/sql/statestore/Errors.scala"
    source.write_text(source.read_text() + "\nobject Broken { val number: Int = true }\n")
    result = build(checkout)
    assert result.returncode == 1
    assert "type mismatch" in result.stderr
    assert (checkout / JAR).read_bytes() == before


@pytest.mark.parametrize(
    ("version", "error"),
    [
        pytest.param(None, "a Java 17 runtime is needed: set JAVA_HOME", id="missing"),
        pytest.param("11.0.2", "Java 17 or newer is needed", id="old"),
    ],
)
def test_build_error_names_a_missing_or_old_java(
    checkout: Path, tmp_path: Path, version: str | None, error: str
) -> None:
    (checkout / JAR).unlink()
    if version is not None:
        java = tmp_path / "bin/java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
    result = build(checkout, JAVA_HOME=str(tmp_path))
    assert result.returncode == 1
    assert error in result.stderr
    assert (version or "") in result.stderr


def test_build_error_names_a_missing_pyspark(checkout: Path) -> None:
    result = run([sys.executable, "-S", str(checkout / "jvm-shim/build_shim.py")], may_fail=True)
    assert result.returncode == 1
    assert "pip install 'pyspark==4.3.*'" in result.stderr


def output_of(code: str, directory: Path) -> list[str]:
    """Return the words that code beside the build's module prints."""
    command = [sys.executable, "-c", f"import build_shim; {code}"]
    return run(command, cwd=directory / "jvm-shim").stdout.split()


def test_wheel_leaves_out_jars_of_earlier_sources(checkout: Path) -> None:
    current = "print(*(jar.name for jar in build_shim.current_jars()))"
    shutil.copy(checkout / JAR, checkout / "spark_statestore/jars/spark-statestore-spark-3.5.jar")
    assert Path(JAR).name in output_of(current, checkout)
    source = checkout / "jvm-shim/src/main/scala/org/apache/spark/sql/statestore/Errors.scala"
    source.write_text(source.read_text() + "\n")
    assert Path(JAR).name not in output_of(current, checkout)


def test_sources_of_each_minor_version_are_chosen_by_their_folders() -> None:
    since = "spark-since-4.1,spark-since-4.2"
    chosen = {
        "4.0.5": "scala,spark-until-4.0,spark-until-4.1,spark-until-4.2",
        "4.2.0": f"scala,{since},spark-since-4.2-until-4.2,spark-until-4.2",
        "4.3.0": f"scala,{since},spark-since-4.3",
        "4.10.1": f"scala,{since},spark-since-4.3",
    }
    folders = "','.join(f.name for f in build_shim.source_folders('main', s))"
    assert output_of(f"print(*({folders} for s in {list(chosen)}))", ROOT) == list(chosen.values())


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        ("4.0.1", "4.0.1"),
        ("4.0.0", ""),
        (f"{SPARK_MINOR}.7", ""),
        (None, ""),
    ],
)
def test_isolated_build_uses_the_pyspark_of_the_environment_that_pip_installs_into(
    tmp_path: Path, installed: str | None, expected: str
) -> None:
    if minor_of(installed or "") == SPARK_MINOR:
        expected = ""
    # An interpreter of its own, whose own packages the build does not import: those of this interpreter are
    # on its path.
    venv.create(tmp_path / "environment", with_pip=False, symlinks=True)
    python = tmp_path / "environment/bin/python"
    if installed is not None:
        (site,) = tmp_path.glob("environment/lib/python*/site-packages")
        jars = site / "pyspark/jars"
        jars.mkdir(parents=True)
        (jars / f"spark-core_2.13-{installed}.jar").touch()
    code = """
import build_shim, hatch_build
built = []
build_shim.build = lambda against=None: built.append(against and against[1])
build_shim.current_jars = lambda: []
hook = hatch_build.ShimBuildHook.__new__(hatch_build.ShimBuildHook)
hatch_build.ShimBuildHook.app = type("App", (), {"display_info": lambda self, text: None})()
hatch_build.ShimBuildHook._write_bill_of_materials = lambda self, jars: "sbom"
hook.initialize("standard", {"artifacts": [], "sbom_files": []})
assert built[0] is None
print(*built[1:])
"""
    path = os.pathsep.join([str(ROOT / "jvm-shim"), str(tmp_path / "overlay"), *sys.path[1:]])
    (tmp_path / "overlay/hatchling/builders/hooks/plugin").mkdir(parents=True)
    (tmp_path / "overlay/hatchling/builders/hooks/plugin/interface.py").write_text(
        "import typing\nclass BuildHookInterface(typing.Generic[typing.TypeVar('T')]):\n    pass\n"
    )
    environment = os.environ | {"PYTHONPATH": path, "PYTHONNOUSERSITE": "1"}
    assert run([python, "-c", code], env=environment).stdout.strip() == expected
