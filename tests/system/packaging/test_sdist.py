"""The sdist: it has what tests need, and builds a wheel with the package index and Java alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from spark_statestore._version import SUPPORTED_SPARK
from tests.support.bare import environment_without_settings
from tests.support.commands import run
from tests.support.paths import ROOT
from tests.system.examples.test_examples import OUTPUT_TWICE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EXAMPLE = "word_count.py"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist of the present sources, or take that of a release."""
    directory = ROOT / "dist"
    if "RELEASE" not in os.environ:
        directory = tmp_path_factory.mktemp("sdist")
        run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", directory], cwd=ROOT)
    (path,) = directory.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    (root,) = directory.iterdir()
    return root


def pytest_in(directory: Path, *arguments: str) -> str:
    """Run pytest on the package and the tests of a directory, and return its output."""
    environment = os.environ | {"PYTHONPATH": str(directory)}
    return run(
        [sys.executable, "-m", "pytest", "-q", *arguments], cwd=directory, env=environment, timeout=900
    ).stdout


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git knows the sources")
def test_sdist_has_every_file_of_the_sources(unpacked: Path) -> None:
    tracked = run(["git", "ls-files", "--cached"], cwd=ROOT).stdout.splitlines()
    assert len(tracked) > 1000
    assert [path for path in tracked if not (unpacked / path).exists()] == [".ci/run"]


def test_first_tier_is_collected_and_runs_from_the_sdist(unpacked: Path) -> None:
    collected = pytest_in(unpacked, "--collect-only", "--tier", "first", "-m", "not alone")
    match = re.search(r"(\d+)(?:/\d+)? tests collected", collected)
    assert match is not None
    assert int(match[1]) > 1000
    output = pytest_in(unpacked, "tests/unit/test_docs.py", "tests/unit/test_source.py", "tests/unit/storage")
    assert " passed" in output


@pytest.mark.soak
@pytest.mark.parametrize("minor", SUPPORTED_SPARK)
def test_sdist_alone_builds_a_wheel_that_runs_beside_each_spark(
    sdist: Path, minor: str, tmp_path: Path
) -> None:
    environment = environment_without_settings()
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "environment")], env=environment, check=True)
    python = tmp_path / "environment" / "bin" / "python"
    for package in (f"pyspark=={minor}.*", str(sdist)):
        install = [python, "-m", "pip", "install", "--quiet", "--no-compile", package]
        subprocess.run(install, cwd=tmp_path, check=True)
    program = "import spark_statestore; print(spark_statestore.jar_path())"
    jar = run([python, "-c", program], cwd=tmp_path, env=environment).stdout
    assert jar.startswith(str(tmp_path))
    assert f"spark-{minor}.jar" in jar
    printed = run([python, ROOT / "examples" / EXAMPLE], cwd=tmp_path, env=environment).stdout
    assert printed.splitlines() == OUTPUT_TWICE[EXAMPLE][0]
