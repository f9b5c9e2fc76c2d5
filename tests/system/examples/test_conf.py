"""Each file of conf/ makes spark-submit keep the state of an unchanged program in this store."""

from __future__ import annotations

import os
import re
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

import spark_statestore
from spark_statestore.options import OPTION_PREFIX, check
from tests.support.commands import run
from tests.support.paths import ROOT
from tests.support.s3 import client_of, environment_of, s3_service

CONF = ROOT / "conf"
PROGRAM = Path(__file__).parent / "programs" / "count.py"
BUCKET = "my-bucket"
DEFINITIONS = re.compile(r"(/config/\w+\$?|/Config\$|SQLConf\$|/SparkConf)\.class$")
"""Classes of Spark that define its settings."""


def settings(name: str) -> dict[str, str]:
    lines = (CONF / f"spark-defaults-{name}.conf").read_text().splitlines()
    return dict(re.split(r"\s+", line.strip(), maxsplit=1) for line in lines if line and line[0] != "#")


def submit(
    name: str, work: Path, checkpoint: str | None = None, python: str = sys.executable, **environment: str
) -> list[str]:
    """Return the program's output of two runs in one application; its checkpoint is in `work` by default."""
    paths = "import pyspark, spark_statestore; print(pyspark.__path__[0], spark_statestore.jar_path())"
    pyspark, jar = run([python, "-c", paths], cwd=work).stdout.split()
    command = [
        f"{pyspark}/bin/spark-submit",
        *("--properties-file", CONF / f"spark-defaults-{name}.conf"),
        *("--jars", jar),
        *("--master", "local[2]"),
        *("--conf", "spark.sql.shuffle.partitions=2"),
        *("--conf", "spark.ui.enabled=false"),
        *(PROGRAM, work, checkpoint or work / "checkpoint"),
    ]
    environment |= {"PYSPARK_PYTHON": python}
    return run(command, cwd=work, env=os.environ | environment).stdout.splitlines()


def keys_of_a_query_on_s3(work: Path, python: str) -> set[str]:
    """Run the program with its checkpoint on S3, check its output, and return the keys of its objects."""
    with s3_service() as url:
        environment = environment_of(url) | {"AWS_ENDPOINT_URL": url}
        # Without fsspec's configuration of the endpoint.
        del environment["FSSPEC_S3_ENDPOINT_URL"]
        client = client_of(url)
        client.create_bucket(Bucket=BUCKET)
        output = submit("s3", work, f"s3://{BUCKET}/checkpoints/count", python, **environment)
        assert output == ["3 rows counted", "6 rows counted"]
        return {entry["Key"] for entry in client.list_objects_v2(Bucket=BUCKET)["Contents"]}


NAMES = ["kubernetes", "local", "memory", "s3"]


def test_every_conf_file_has_a_test():
    assert {path.name for path in CONF.glob("*.conf")} == {f"spark-defaults-{name}.conf" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_conf_settings_name_existing_classes_and_options(name: str):
    conf = settings(name)
    options = {key: value for key, value in conf.items() if key.startswith(OPTION_PREFIX)}
    classes = {value for value in conf.values() if value.startswith("org.apache.spark.")}
    for key, value in options.items():
        check(key.removeprefix(OPTION_PREFIX), value)
    assert options.pop(OPTION_PREFIX + "storage") == ("memory" if name == "memory" else "filesystem")
    assert options
    required = {getattr(spark_statestore, f"{c}_CLASS") for c in ("PROVIDER", "EXTENSIONS", "FILE_MANAGER")}
    assert required <= classes <= required | {spark_statestore.PLUGIN_CLASS}


@pytest.fixture(scope="module")
def names_in_spark() -> set[str]:
    """Return the names of settings in the classes of Spark that define them; a prefix ends with a dot."""
    names = set()
    for jar in (Path(pyspark.__file__).parent / "jars").glob("spark-*.jar"):
        with zipfile.ZipFile(jar) as archive:
            for entry in filter(DEFINITIONS.search, archive.namelist()):
                names |= {name.decode() for name in re.findall(rb"spark\.[\w.]+", archive.read(entry))}
    # Spark joins this name at run time.
    return {*names, "spark.kubernetes.authenticate.driver.serviceAccountName"}


@pytest.mark.parametrize("name", NAMES)
def test_conf_settings_are_known_to_spark(name: str, names_in_spark: set[str]):
    prefixes = tuple(prefix for prefix in names_in_spark if prefix.endswith("."))
    unknown = [key for key in settings(name) if not key.startswith((*prefixes, OPTION_PREFIX))]
    assert set(unknown) - names_in_spark == set()


@pytest.mark.parametrize("name", NAMES)
def test_conf_has_no_secrets(name: str):
    secret = re.compile(r"secret|password|token|access_?key|credential", re.IGNORECASE)
    for key, value in settings(name).items():
        if secret.search(key + value):
            assert re.fullmatch(r"spark\.kubernetes\.(driver|executor)\.secretKeyRef\.[A-Z_]+", key), key
            # The name of a Kubernetes secret, and a key in it.
            assert re.fullmatch(r"[a-z0-9-]+:[A-Z_]+", value), key


@pytest.mark.first
@pytest.mark.slow
@pytest.mark.usefixtures("built")
def test_conf_keeps_state_in_local_files(tmp_path: Path):
    assert submit("local", tmp_path) == ["3 rows counted", "6 rows counted"]
    assert list(tmp_path.glob("checkpoint/state/0/*/chk-*/_metadata"))


@pytest.mark.slow
@pytest.mark.usefixtures("built")
def test_conf_keeps_state_on_s3(tmp_path: Path):
    keys = keys_of_a_query_on_s3(tmp_path, sys.executable)
    metadata = (
        re.fullmatch(r"checkpoints/count/state/0/(\d)/chk-\d+(?:_\w+)?/_metadata", key) for key in keys
    )
    assert {match[1] for match in metadata if match} == {"0", "1"}
    assert {"checkpoints/count/commits/1", "checkpoints/count/metadata"} <= keys
    assert not (tmp_path / "checkpoint").exists()
