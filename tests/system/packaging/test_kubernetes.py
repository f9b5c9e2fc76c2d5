"""Settings and manifest for Kubernetes: the operator's schema, and the pods that Spark builds from them."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import jsonschema
import pytest
import yaml

from spark_statestore._version import SUPPORTED_SPARK, minor_of
from tests.support.commands import run
from tests.support.paths import ROOT
from tests.system.examples.test_conf import settings
from tests.system.packaging.pods import PROGRAM

DIRECTORY = ROOT / "conf/kubernetes"
MANIFEST = yaml.safe_load((DIRECTORY / "application.yaml").read_text())
TEMPLATE = yaml.safe_load((DIRECTORY / "executor.yaml").read_text())
SETTINGS = settings("kubernetes")
TEMPLATE_KEY = "spark.kubernetes.executor.podTemplateFile"


def closed(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    """Return the schema of an object without further properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": required or [],
        "additionalProperties": False,
    }


TEXT = {"type": "string"}
INTEGER = {"type": "integer"}
# The fields of version v1 that the manifest may use, as the classes of the operator's API name them.
SCHEMA = closed(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "spark.apache.org/v1"},
    kind={"const": "SparkApplication"},
    metadata=closed(["name"], name={"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}),
    spec=closed(
        ["runtimeVersions"],
        pyFiles=TEXT,
        driverArgs={"type": "array", "items": TEXT},
        sparkConf={"type": "object", "additionalProperties": TEXT},
        runtimeVersions=closed(["sparkVersion"], sparkVersion=TEXT, scalaVersion=TEXT, jdkVersion=TEXT),
        applicationTolerations=closed(
            restartConfig=closed(
                restartPolicy={"enum": ["Never", "Always", "OnFailure", "OnInfrastructureFailure"]},
                maxRestartAttempts=INTEGER,
                restartBackoffMillis=INTEGER,
                restartCounterResetMillis=INTEGER,
            ),
        ),
        executorSpec=closed(
            podTemplateSpec=closed(
                spec=closed(
                    securityContext=closed(
                        fsGroup=INTEGER,
                        fsGroupChangePolicy={"enum": ["OnRootMismatch", "Always"]},
                    ),
                ),
            ),
        ),
    ),
)


def test_manifest_follows_the_schema_of_the_operator() -> None:
    jsonschema.validate(MANIFEST, SCHEMA)


def test_manifest_has_the_settings_and_the_template_of_spark_submit() -> None:
    spec = MANIFEST["spec"]
    assert spec["sparkConf"] | {TEMPLATE_KEY: SETTINGS[TEMPLATE_KEY]} == SETTINGS
    assert ROOT / SETTINGS[TEMPLATE_KEY] == DIRECTORY / "executor.yaml"
    assert spec["executorSpec"]["podTemplateSpec"]["spec"] == TEMPLATE["spec"]
    assert (TEMPLATE["apiVersion"], TEMPLATE["kind"]) == ("v1", "Pod")


def test_manifest_has_the_spark_of_the_image() -> None:
    version = MANIFEST["spec"]["runtimeVersions"]["sparkVersion"]
    assert SETTINGS["spark.kubernetes.container.image"].endswith(f":{version}")
    assert minor_of(version) == SUPPORTED_SPARK[-1]


def test_usage_names_the_program_and_the_checkpoint_of_the_manifest() -> None:
    usage = (ROOT / "conf/spark-defaults-kubernetes.conf").read_text()
    assert MANIFEST["spec"]["pyFiles"] == PROGRAM
    assert f"{PROGRAM} {MANIFEST['spec']['driverArgs'][0]}\n" in usage


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the environment of a pod's container: values, and keys of secrets as the settings write them."""
    variables = {}
    for variable in pod["container"]["env"]:
        secret = variable.get("valueFrom", {}).get("secretKeyRef")
        variables[variable["name"]] = f"{secret['name']}:{secret['key']}" if secret else variable.get("value")
    return variables


def memory(pod: dict[str, Any]) -> int:
    limit = re.fullmatch(r"(\d+)Mi", pod["container"]["resources"]["limits"]["memory"])
    assert limit
    return int(limit[1])


@pytest.fixture(scope="module")
def pods() -> list[dict[str, Any]]:
    """Return the pods of the settings, and of the same with Spark's default of the overhead."""
    default = {key: value for key, value in SETTINGS.items() if not key.endswith(".memoryOverhead")}
    program = [sys.executable, "-m", "tests.system.packaging.pods", json.dumps([SETTINGS, default])]
    built: list[dict[str, Any]] = json.loads(run(program, cwd=ROOT).stdout)
    return built


@pytest.mark.slow
@pytest.mark.parametrize("role", ["driver", "executor"])
def test_pods_have_the_image_the_account_and_the_credentials(pods: list[dict[str, Any]], role: str) -> None:
    pod = pods[0][role]
    assert pod["serviceAccountName"] == SETTINGS["spark.kubernetes.authenticate.driver.serviceAccountName"]
    assert pod["container"]["image"] == SETTINGS["spark.kubernetes.container.image"]
    variables = environment(pod)
    assert variables["AWS_DEFAULT_REGION"] == "us-east-1"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert variables[name] == f"s3:{name}"
    if role == "driver":
        assert variables["PYSPARK_DRIVER_PYTHON"] == SETTINGS["spark.pyspark.python"]


@pytest.mark.slow
def test_volume_of_an_executor_has_its_local_directory_and_the_copies(pods: list[dict[str, Any]]) -> None:
    pod, (claim,) = pods[0]["executor"], pods[0]["claims"]
    (volume,) = [volume for volume in pod["volumes"] if "persistentVolumeClaim" in volume]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    (mount,) = [mount for mount in pod["container"]["volumeMounts"] if mount["name"] == volume["name"]]
    assert environment(pod)["SPARK_LOCAL_DIRS"] == mount["mountPath"]
    copies = SETTINGS["spark.sql.streaming.stateStore.backend.localRecovery"]
    assert copies.startswith(mount["mountPath"] + "/")
    assert pod["securityContext"] == TEMPLATE["spec"]["securityContext"]


@pytest.mark.slow
@pytest.mark.parametrize("role", ["driver", "executor"])
def test_pods_have_memory_for_the_backend(pods: list[dict[str, Any]], role: str) -> None:
    with_backend, default = (memory(pod[role]) for pod in pods)
    # Spark rounds to whole MiB.
    assert 256 <= with_backend - default <= 257
