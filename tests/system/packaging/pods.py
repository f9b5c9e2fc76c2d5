"""Program that prints the pods that Spark would submit to Kubernetes for settings, without a cluster.

Its only argument is a list of settings as JSON, its output a list with the driver, an executor and its
volume claims.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from py4j.java_gateway import JavaGateway
from pyspark.java_gateway import launch_gateway

PROGRAM = "local:///opt/spark/work-dir/program.py"


class PodBuilder:
    """Spark's own builders of pods, in a JVM."""

    def __init__(self, gateway: JavaGateway) -> None:
        jvm = gateway.jvm
        self._jvm = jvm
        self._strings = gateway.new_array(jvm.java.lang.String, 0)
        self._none = jvm.scala.Option.empty()
        self._client = jvm.io.fabric8.kubernetes.client.KubernetesClientBuilder().build()
        self._serialization = jvm.io.fabric8.kubernetes.client.utils.KubernetesSerialization()

    def build(self, settings: dict[str, str]) -> dict[str, Any]:
        spark = self._jvm.org.apache.spark
        kubernetes = spark.deploy.k8s
        conf = spark.SparkConf(False)
        submission = {
            "master": "k8s://https://localhost:1",
            "submit.deployMode": "cluster",
            "app.name": "orders",
        }
        for key, value in ({f"spark.{key}": value for key, value in submission.items()} | settings).items():
            conf.set(key, value)
        program = kubernetes.submit.PythonMainAppResource(PROGRAM)
        runner = "org.apache.spark.deploy.PythonRunner"
        driver_conf = kubernetes.KubernetesConf.createDriverConf(
            conf, "app", program, runner, self._strings, self._none
        )
        driver = kubernetes.submit.KubernetesDriverBuilder().buildFromFeatures(driver_conf, self._client)
        # The submission adds settings, such as the overhead of Python, and has moved the template to the
        # driver's pod.
        for pair in items(driver.systemProperties()):
            conf.set(pair._1(), pair._2())
        for key, value in settings.items():
            conf.set(key, value)
        conf.set("spark.driver.host", "driver")
        conf.set("spark.driver.port", "7078")
        profiles = singleton(spark.resource, "ResourceProfile")
        # It is of the settings before.
        profiles.clearDefaultProfile()
        secret_file = singleton(spark.internal.config, "package").AUTH_SECRET_FILE()
        executor = spark.scheduler.cluster.k8s.KubernetesExecutorBuilder().buildFromFeatures(
            kubernetes.KubernetesConf.createExecutorConf(conf, "1", "app", self._none, 0),
            spark.SecurityManager(conf, self._none, secret_file),
            self._client,
            profiles.getOrCreateDefaultProfile(conf),
        )
        return {
            "driver": self._pod(driver.pod()),
            "executor": self._pod(executor.pod()),
            "claims": [self._plain(claim) for claim in items(executor.executorKubernetesResources())],
        }

    def _pod(self, pod: Any) -> dict[str, Any]:
        return self._plain(pod.pod())["spec"] | {"container": self._plain(pod.container())}

    def _plain(self, resource: Any) -> Any:
        return json.loads(self._serialization.asJson(resource))


def singleton(package: Any, name: str) -> Any:
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def items(collection: Any) -> Iterator[Any]:
    iterator = collection.iterator()
    while iterator.hasNext():
        yield iterator.next()


def main() -> None:
    gateway = launch_gateway()
    builder = PodBuilder(gateway)
    print(json.dumps([builder.build(settings) for settings in json.loads(sys.argv[1])]))
    gateway.shutdown()


if __name__ == "__main__":
    main()
