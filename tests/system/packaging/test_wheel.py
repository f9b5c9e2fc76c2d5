"""Content of the wheel, and its use without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spark_statestore import __version__
from tests.support.paths import ROOT, SPARK_MINOR

pytestmark = pytest.mark.slow

JAR = f"spark_statestore/jars/spark-statestore-spark-{SPARK_MINOR}.jar"


@pytest.fixture(scope="module")
def wheel(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(target), str(ROOT)], check=True)
    (found,) = target.glob("*.whl")
    return found


def test_wheel_fits_every_python_and_platform(wheel: Path) -> None:
    assert wheel.name == f"spark_statestore-{__version__}-py3-none-any.whl"


def test_wheel_has_only_the_package_and_the_jar(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"spark_statestore", f"spark_statestore-{__version__}.dist-info"}
    assert JAR in names
    assert "spark_statestore/py.typed" in names
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "spark_statestore").rglob("*.py")}
    assert sources <= names


def test_jar_has_only_project_classes(wheel: Path, tmp_path: Path) -> None:
    jar = zipfile.ZipFile(zipfile.ZipFile(wheel).extract(JAR, tmp_path))
    classes = [entry for entry in jar.namelist() if entry.endswith(".class")]
    assert classes
    assert all(entry.startswith("org/apache/spark/sql/statestore/") for entry in classes)
    assert not any("ProviderHarness" in entry for entry in classes)


def test_example_runs_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True)
    example = tmp_path / "word_count.py"
    example.write_text((ROOT / "examples/word_count.py").read_text())
    # Before this checkout, which is installed as editable.
    environment = os.environ | {"PYTHONPATH": str(site)}
    run = subprocess.run(
        [sys.executable, "-c", "import spark_statestore; print(spark_statestore.jar_path())"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.startswith(str(site))
    run = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
