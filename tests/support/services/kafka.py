"""Apache Kafka: one broker, which is its own controller, and Spark's connector, from Maven's repository."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.commands import run
from tests.support.services.service import (
    START_SECONDS,
    ServiceUnavailableError,
    fetched,
    free_port,
    listens,
    maven_jars,
    running,
)

VERSION: Final = "4.1.2"

CONNECTOR_VERSION: Final = "4.2.0"
"""Version of Spark's connector: the newest one that Maven Central has."""

_SLF4J: Final = "1.7.36"

# Without the options of Spark's JVMs in tests.
_ENVIRONMENT: Final = {"JDK_JAVA_OPTIONS": ""}

# What must be set for one node, on the loopback alone.
_PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={logs}
num.partitions=2
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def fetch() -> Path:
    """Return the directory of the broker's jars."""
    if shutil.which("java") is None:
        raise ServiceUnavailableError("java is not installed")

    def resolve(directory: Path) -> None:
        broker = f"org.apache.kafka:kafka_2.13:{VERSION}"
        # Without it the broker logs nothing.
        logging = f"org.slf4j:slf4j-simple:{_SLF4J}"
        maven_jars(directory, broker, logging, transitive=True)

    return fetched(f"kafka-{VERSION}", resolve)


def connector() -> Path:
    """Return the directory of the jars of Spark's connector, without those that PySpark has."""
    jars = (
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_VERSION}",
        f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{CONNECTOR_VERSION}",
        # The versions in the connector's POM.
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.13.1",
    )
    return fetched(f"kafka-connector-{CONNECTOR_VERSION}", lambda directory: maven_jars(directory, *jars))


class Broker:
    """A broker that can be stopped and started again, with its topics.

    Its jars are in `home`, its data in `directory`.
    """

    def __init__(self, home: Path, directory: Path) -> None:
        options = ["-Xmx384m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        self._java = ["java", *options, "-cp", f"{home}/*"]
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._running = contextlib.ExitStack()
        self._port = free_port()
        self._properties = directory / "server.properties"
        self._properties.write_text(
            _PROPERTIES.format(port=self._port, controller_port=free_port(), logs=directory / "data")
        )
        cluster = ("--standalone", "--cluster-id", uuid.uuid4().hex[:22], "--config", str(self._properties))
        command = [*self._java, "kafka.tools.StorageTool", "format", *cluster]
        run(command, env=os.environ | _ENVIRONMENT, timeout=START_SECONDS)
        self.start()

    @property
    def servers(self) -> str:
        """Its address, as clients have it in ``bootstrap.servers``."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it unless it runs, and wait until it accepts connections."""
        if self._process is None:
            command = [*self._java, "kafka.Kafka", str(self._properties)]
            broker = running(
                "Kafka", command, lambda: listens(self._port), _ENVIRONMENT, directory=self._directory
            )
            self._process = self._running.enter_context(broker)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it with a signal; it can be started again."""
        if self._process is not None:
            self._process.send_signal(number)
            self._running.close()
            self._process = None


@contextlib.contextmanager
def kafka() -> Iterator[Broker]:
    """Start a broker with an empty data directory."""
    home = fetch()
    with tempfile.TemporaryDirectory(prefix="kafka-") as scratch:
        broker = Broker(home, Path(scratch))
        try:
            yield broker
        finally:
            broker.stop()
