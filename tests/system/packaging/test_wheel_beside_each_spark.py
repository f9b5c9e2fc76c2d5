"""The wheel of all jars, in an empty environment with each PySpark, runs the examples."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from spark_statestore._version import SUPPORTED_SPARK
from tests.support.bare import environment_without_settings
from tests.support.commands import environment_with, run
from tests.support.paths import ROOT
from tests.system.examples.test_examples import OUTPUT, OUTPUT_TWICE, READER, STATE

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

# Python's transformWithState by rows.
NOT_ON = {"4.0": {"transform_with_state.py"}}


@pytest.fixture(scope="module")
def wheel() -> Path:
    """Build the wheel with the jars of all minor versions, or take that of a release."""
    if "RELEASE" not in os.environ:
        subprocess.run(["make", "wheel"], cwd=ROOT, check=True)
    (path,) = (ROOT / "dist").glob("*.whl")
    return path


@pytest.fixture(params=SUPPORTED_SPARK)
def python(request: pytest.FixtureRequest, wheel: Path, tmp_path: Path) -> tuple[str, Path]:
    """Return a minor version, and the interpreter of an environment with its PySpark and the wheel."""
    minor = request.param
    packages = [f"{wheel}[demo]", f"pyspark=={minor}.*", "duckdb"]
    return minor, environment_with(tmp_path / "environment", *packages)


def lines_of(python: Path, cwd: Path, example: str, *arguments: str) -> list[str]:
    command = [python, ROOT / "examples" / example, *arguments]
    return run(command, cwd=cwd, env=environment_without_settings()).stdout.splitlines()


def test_examples_print_their_results(python: tuple[str, Path], tmp_path: Path) -> None:
    minor, interpreter = python
    program = "import spark_statestore, pyspark; print(spark_statestore.jar_path())"
    jar = run([interpreter, "-c", program], cwd=tmp_path).stdout
    assert jar.startswith(str(tmp_path))
    assert f"spark-{minor}.jar" in jar
    for example in sorted(OUTPUT.keys() - NOT_ON.get(minor, set())):
        assert lines_of(interpreter, tmp_path, example) == OUTPUT[example], example
    for example, outputs in OUTPUT_TWICE.items():
        for output in outputs:
            assert lines_of(interpreter, tmp_path, example, example + "-files") == output, example
    assert lines_of(interpreter, tmp_path, READER, "word_count.py-files/checkpoint") == STATE
