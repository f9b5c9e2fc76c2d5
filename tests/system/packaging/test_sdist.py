"""The sdist: it has what tests need, and builds a wheel with the package index and Java alone."""

from __future__ import annotations

import os
import sys
import tarfile
from pathlib import Path

import pytest

from spark_statestore._version import SUPPORTED_SPARK
from tests.support.bare import environment_without_settings
from tests.support.commands import build, environment_with, install, run
from tests.support.paths import ROOT
from tests.system.examples.test_examples import OUTPUT_TWICE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EXAMPLE = "word_count.py"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist of the present sources, or take that of a release."""
    if "RELEASE" not in os.environ:
        return build("sdist", tmp_path_factory.mktemp("sdist"))
    (path,) = (ROOT / "dist").glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    (root,) = directory.iterdir()
    return root


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git knows the sources")
def test_sdist_has_every_file_of_the_sources(unpacked: Path) -> None:
    tracked = run(["git", "ls-files", "--cached"], cwd=ROOT).stdout.splitlines()
    assert len(tracked) > 1000
    assert [path for path in tracked if not (unpacked / path).exists()] == [".ci/run"]


def test_tests_run_from_the_sdist(unpacked: Path) -> None:
    files = [f"tests/unit/{name}.py" for name in ("test_docs", "test_source", "storage/test_handles")]
    command = [sys.executable, "-m", "pytest", "-q", *files]
    output = run(command, cwd=unpacked, env=os.environ | {"PYTHONPATH": str(unpacked)}).stdout
    assert " passed" in output


@pytest.mark.soak
@pytest.mark.parametrize("minor", SUPPORTED_SPARK)
def test_sdist_alone_builds_a_wheel_that_runs_beside_each_spark(
    sdist: Path, minor: str, tmp_path: Path
) -> None:
    environment = environment_without_settings()
    python = environment_with(tmp_path / "environment", f"pyspark=={minor}.*")
    install(python, str(sdist))
    program = "import spark_statestore; print(spark_statestore.jar_path())"
    jar = run([python, "-c", program], cwd=tmp_path, env=environment).stdout
    assert jar.startswith(str(tmp_path))
    assert f"spark-{minor}.jar" in jar
    printed = run([python, ROOT / "examples" / EXAMPLE], cwd=tmp_path, env=environment).stdout
    assert printed.splitlines() == OUTPUT_TWICE[EXAMPLE][0]
