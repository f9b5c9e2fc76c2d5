"""YARN: Hadoop's cluster for tests, with two node managers, from Maven's repository."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import psutil
from py4j.java_gateway import GatewayParameters, JavaGateway

from tests.spark.counting import runs
from tests.support.services.hdfs import fetch as fetch_minicluster
from tests.support.services.hdfs import hadoop_version
from tests.support.services.service import PYSPARK_JARS, START_SECONDS, fetched, maven_jars

# The resource manager has certificates for the proxies of applications.
_BOUNCY_CASTLE: Final = "1.82"

_NODES: Final = 2

_LOG_CHARACTERS: Final = 4000

# A container has at most 1 GiB, and a node two of them.
_SETTINGS: Final = {
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.scheduler.maximum-allocation-mb": "1024",
    "yarn.nodemanager.resource.memory-mb": "2048",
    # A JVM reserves more addresses than memory.
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.enable": "false",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
}

# Clients and containers find the resource manager by them.
_ADDRESSES: Final = ("yarn.resourcemanager.address", "yarn.resourcemanager.scheduler.address")


@dataclass(frozen=True)
class Yarn:
    """A running cluster.

    `configuration` is the ``HADOOP_CONF_DIR`` of its clients; the files of containers are below `directory`.
    """

    directory: Path
    configuration: Path

    def processes(self, argument: str) -> list[psutil.Process]:
        """Return the running processes of its containers with an argument in their command."""
        return [process for process in _processes_below(self.directory) if runs(process, argument)]

    def logs(self, characters: int = _LOG_CHARACTERS) -> str:
        """Return the ends of the logs of containers that have ended or still run."""
        paths = sorted(self.directory.glob("*/*/*-logDir-nm-*/application_*/container_*/std*"))
        return "\n".join(
            f"{path.parent.name}/{path.name}:\n{path.read_text(errors='replace')[-characters:]}"
            for path in paths
        )


def fetch() -> tuple[Path, Path]:
    """Return the directories of the jars that the cluster needs besides PySpark's."""
    home = fetch_minicluster()
    certificates = f"org.bouncycastle:bcpkix-jdk18on:{_BOUNCY_CASTLE}"
    libraries = fetched(
        f"yarn-{hadoop_version()}", lambda directory: maven_jars(directory, certificates, transitive=True)
    )
    return home, libraries


@contextlib.contextmanager
def yarn() -> Iterator[Yarn]:
    """Start a cluster on the loopback, and end it with all of its containers."""
    homes = fetch()
    with tempfile.TemporaryDirectory(prefix="yarn-") as scratch, contextlib.ExitStack() as stack:
        directory, configuration = Path(scratch, "nodes"), Path(scratch, "conf")
        directory.mkdir()
        configuration.mkdir()
        jvm = stack.enter_context(_java_machine(directory, homes))
        settings = jvm.org.apache.hadoop.yarn.conf.YarnConfiguration()
        for name, value in _SETTINGS.items():
            settings.set(name, value)
        cluster = jvm.org.apache.hadoop.yarn.server.MiniYARNCluster("nodes", _NODES, 1, 1)
        stack.callback(_kill_processes_below, directory)
        stack.callback(cluster.stop)
        cluster.init(settings)
        cluster.start()
        if not cluster.waitForNodeManagersToConnect(1000 * START_SECONDS):
            raise RuntimeError(f"YARN's node managers did not connect in {START_SECONDS} s")
        started = cluster.getConfig()
        addresses = {name: started.get(name) for name in _ADDRESSES}
        _write_settings(configuration / "yarn-site.xml", addresses)
        _write_settings(configuration / "core-site.xml", {"fs.defaultFS": "file:///"})
        yield Yarn(directory, configuration)


@contextlib.contextmanager
def _java_machine(directory: Path, homes: tuple[Path, ...]) -> Iterator[Any]:
    """Start a JVM with Hadoop's classes, which ends with this process, and yield its view by Py4J."""
    java = Path(shutil.which("java") or "java").resolve()
    work, output, log = directory.parent, directory.parent / "gateway.out", directory.parent / "cluster.log"
    command = [
        *(str(java), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-Dorg.apache.logging.log4j.level=WARN"),
        *(f"-Dtest.build.data={directory}", f"-Dbasedir={directory}"),
        *("-cp", os.pathsep.join(f"{home}/*" for home in (*homes, PYSPARK_JARS))),
        *("py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"),
    ]
    # Containers get JAVA_HOME from their node.
    environment = os.environ | {"JAVA_HOME": str(java.parents[1]), "JDK_JAVA_OPTIONS": ""}
    with output.open("wb") as stdout, log.open("wb") as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, cwd=work, env=environment
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while len(lines := output.read_text().splitlines()) < 2:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"YARN is not ready; its log:\n{log.read_text()[-_LOG_CHARACTERS:]}")
            time.sleep(0.05)
        parameters = GatewayParameters(port=int(lines[0]), auth_token=lines[1])
        gateway = JavaGateway(gateway_parameters=parameters)
        try:
            yield gateway.jvm
        finally:
            gateway.shutdown()
    finally:
        process.communicate()


def _write_settings(path: Path, settings: Mapping[str, str]) -> None:
    root = ElementTree.Element("configuration")
    for name, value in settings.items():
        entry = ElementTree.SubElement(root, "property")
        ElementTree.SubElement(entry, "name").text = name
        ElementTree.SubElement(entry, "value").text = value
    ElementTree.ElementTree(root).write(path)


def _processes_below(directory: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if Path(process.cwd()).is_relative_to(directory):
                yield process


def _kill_processes_below(directory: Path) -> None:
    """Kill the processes of containers that their nodes have not ended."""
    for process in _processes_below(directory):
        with contextlib.suppress(psutil.Error):
            process.kill()
