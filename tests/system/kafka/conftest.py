"""Fixtures of the tests with Kafka: a broker, and a session with Spark's connector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_statestore
from tests.support.services.kafka import Broker, connector, kafka
from tests.support.sessions import local_builder
from tests.system.kafka.queries import Topics
from tests.system.kafka.runs import Runs


@pytest.fixture(scope="session")
def jars() -> str:
    """Return the jars of Spark's connector, as ``spark.jars`` has them."""
    return ",".join(map(str, sorted(connector().glob("*.jar"))))


@pytest.fixture(scope="session")
def running_broker() -> Iterator[Broker]:
    """Run a broker for all tests."""
    with kafka() as broker:
        yield broker


@pytest.fixture
def broker(running_broker: Broker) -> Broker:
    """Return the broker, started again if a test has stopped it."""
    running_broker.start()
    return running_broker


@pytest.fixture(scope="session")
def spark(built: Path, jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start a session that writes and reads topics, converts checkpoints, and runs real-time queries."""
    builder = (
        # A real-time query has a slot for each partition of its topic and of its state, beside those that
        # feed and read.
        local_builder("kafka-tests", memory="1g", master="local[6]")
        .config("spark.jars", f"{jars},{built}")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    )
    session = spark_statestore.configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def runs(broker: Broker, jars: str, tmp_path: Path) -> Runs:
    """Return the runs of queries on new topics."""
    return Runs(Topics.new(broker.servers), jars, tmp_path / "checkpoints")
