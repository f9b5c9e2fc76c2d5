"""Content of the wheel, and its use without the checkout."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import zipfile
from email import message_from_bytes
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from spark_statestore import __version__
from tests.support.bare import environment_without_settings
from tests.support.commands import build, environment_with, run
from tests.support.paths import ROOT, SPARK_MINOR
from tests.system.examples.test_conf import keys_of_a_query_on_s3

pytestmark = pytest.mark.slow

JAR = f"spark_statestore/jars/spark-statestore-spark-{SPARK_MINOR}.jar"


@pytest.fixture(scope="module")
def wheel(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


def test_wheel_has_only_the_package_and_the_jar(wheel: Path) -> None:
    assert wheel.name == f"spark_statestore-{__version__}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"spark_statestore", f"spark_statestore-{__version__}.dist-info"}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "spark_statestore").rglob("*.py")}
    assert sources | {JAR, "spark_statestore/py.typed"} <= names


def bill_of_materials(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [name for name in archive.namelist() if ".dist-info/sboms/" in name]
        return archive.read(path).decode()


def test_bill_of_materials_has_the_jars_and_dependencies_of_the_wheel(wheel: Path) -> None:
    bill = json.loads(bill_of_materials(wheel))
    components = {component["name"]: component for component in bill["components"]}
    with zipfile.ZipFile(wheel) as archive:
        shipped = {
            Path(name).name: archive.read(name) for name in archive.namelist() if name.endswith(".jar")
        }
        (described,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        requirements = message_from_bytes(archive.read(described)).get_all("Requires-Dist", [])
    for name, content in shipped.items():
        digest = hashlib.sha256(content).hexdigest()
        assert components[name]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    parsed = [Requirement(text) for text in requirements]
    required = {requirement.name for requirement in parsed if requirement.marker is None}
    assert {name for name, component in components.items() if component["scope"] == "required"} == {
        *shipped,
        *required,
    }
    assert components["pyspark"]["purl"] == "pkg:pypi/pyspark?vers=vers:pypi/%3E%3D4.0.1%7C%3C4.4"
    spark = components["spark-sql_2.13"]
    assert (spark["version"], spark["scope"]) == (version("pyspark"), "excluded")
    assert "serialNumber" not in bill


def test_bill_of_materials_follows_the_schema(wheel: Path) -> None:
    validation = pytest.importorskip("cyclonedx.validation.json", exc_type=ImportError)
    schema = importlib.import_module("cyclonedx.schema").SchemaVersion.V1_6
    assert validation.JsonStrictValidator(schema).validate_str(bill_of_materials(wheel)) is None


def test_jar_has_only_project_classes(wheel: Path, tmp_path: Path) -> None:
    jar = zipfile.ZipFile(zipfile.ZipFile(wheel).extract(JAR, tmp_path))
    classes = [entry for entry in jar.namelist() if entry.endswith(".class")]
    assert classes
    assert jar.read("META-INF/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert all(entry.startswith("org/apache/spark/sql/statestore/") for entry in classes)
    assert not any("ProviderHarness" in entry for entry in classes)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_query_on_s3_resumes_with_the_extra_alone(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = str(environment_with(tmp_path / "environment", f"{wheel}[s3]", f"pyspark=={SPARK_MINOR}.*"))
    for name in os.environ.keys() - environment_without_settings().keys():
        monkeypatch.delenv(name)
    modules = (
        "import importlib.util as i; print(*filter(i.find_spec, ['google', 'pandas', 'pytest', 's3fs']))"
    )
    assert run([python, "-c", modules]).stdout.split() == []
    assert "checkpoints/count/commits/1" in keys_of_a_query_on_s3(tmp_path, python)
