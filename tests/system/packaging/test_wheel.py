"""Content of the wheel, and its use without the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spark_statestore import __version__
from tests.support.bare import environment_without_settings
from tests.support.commands import run
from tests.support.paths import ROOT, SPARK_MINOR, TEST_JAR
from tests.support.s3 import client_of, environment_of, s3_service
from tests.system.object_stores.whole_checkpoint_runs import outputs

pytestmark = pytest.mark.slow

JAR = f"spark_statestore/jars/spark-statestore-spark-{SPARK_MINOR}.jar"


@pytest.fixture(scope="module")
def wheel(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(target), str(ROOT)], check=True)
    (found,) = target.glob("*.whl")
    return found


def test_wheel_has_only_the_package_and_the_jar(wheel: Path) -> None:
    assert wheel.name == f"spark_statestore-{__version__}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"spark_statestore", f"spark_statestore-{__version__}.dist-info"}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "spark_statestore").rglob("*.py")}
    assert sources | {JAR, "spark_statestore/py.typed"} <= names


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
    program = f"""
import runpy, spark_statestore
assert spark_statestore.jar_path().startswith({str(site)!r})
runpy.run_path({str(example)!r}, run_name="__main__")
"""
    # The site comes before this checkout, which is installed as editable.
    run([sys.executable, "-c", program], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(site)})


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_queries_on_s3_resume_with_the_extra_alone(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--no-compile"]
    subprocess.run([*install, f"{wheel}[s3]", f"pyspark=={SPARK_MINOR}.*"], check=True)
    source = tmp_path / "input"
    source.mkdir()
    for number in range(4):
        rows = [
            {"k": f"k{i % 5}", "seq": i, "n": i, "ts": f"2026-01-01T00:0{number}:00Z"}
            for i in range(number, 60, 2)
        ]
        path = source / f"{number}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # The source reads files in the order of their times.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))

    def query(checkpoints: str, output: Path, *most: int) -> int:
        program = ROOT / "tests/system/packaging/programs/checkpoint_on_s3.py"
        arguments = [checkpoints, str(source), str(output), str(TEST_JAR), *map(str, most)]
        done = run(
            [python, str(program), *arguments],
            cwd=tmp_path,
            env=environment_without_settings() | {"PYSPARK_PYTHON": python} | service,
            may_fail=True,
        )
        assert (done.returncode == 0) == (not most), done.stderr[-5000:]
        return len(output.read_text().splitlines())

    with s3_service() as url:
        # Without fsspec's configuration of the endpoint.
        service = environment_of(url) | {"AWS_ENDPOINT_URL": url}
        del service["FSSPEC_S3_ENDPOINT_URL"]
        client_of(url).create_bucket(Bucket="checkpoints")
        query(str(tmp_path / "local"), tmp_path / "local.jsonl")
        expected = outputs(tmp_path / "local.jsonl")
        assert len(expected) == 12
        # A batch of each query ends with the driver.
        killed = [query("s3://checkpoints/one", tmp_path / "s3.jsonl", most) for most in (2, 6, 10)]
        assert killed == [2, 6, 10]
        query("s3://checkpoints/one", tmp_path / "s3.jsonl")
        assert outputs(tmp_path / "s3.jsonl") == expected
