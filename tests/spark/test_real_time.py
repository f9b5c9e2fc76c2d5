"""Queries in real-time mode: on this store as on Spark's RocksDB store, and without state beside it."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

import spark_statestore
from spark_statestore.options import OPTION_PREFIX
from tests.spark.counting import wait_until
from tests.spark.harness import ROCKSDB
from tests.support.spark_versions import is_since

pytestmark = pytest.mark.slow

IS_OLDER = not is_since("4.3")

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
REAL_TIME = OPTION_PREFIX + "realTimeMode"
ALLOWLIST = "spark.sql.streaming.realTimeMode.allowlistCheck"

GROUPS = 3


class RealTimeQuery:
    """A query over numbers from Spark's low-latency memory stream, whose rows are collected as they come."""

    def __init__(self, session: Any, checkpoint: Path, build: Callable[[Any], Any]) -> None:
        from pyspark.sql import DataFrame

        self._session = session
        self._jvm = session._jvm
        sources = self._jvm.org.apache.spark.sql.execution.streaming.sources
        # One partition and one shuffle partition run at once: two cores.
        encoder = self._jvm.org.apache.spark.sql.Encoders.INT()
        self._stream = sources.LowLatencyMemoryStream.apply(session._jsparkSession, 1, encoder)
        self._rows = build(DataFrame(self._stream.toDF(), session))
        self._name = f"rows-{uuid.uuid4().hex}"
        self._query: Any = None
        self._fed = 0
        self.checkpoint = checkpoint

    def feed(self, *numbers: int) -> None:
        rows = self._jvm.java.util.ArrayList()
        for number in numbers:
            rows.add(number)
        self._stream.addData(self._jvm.scala.jdk.CollectionConverters.ListHasAsScala(rows).asScala())
        self._fed += len(numbers)

    def start(self, seconds: int) -> None:
        """Start the query with batches of a duration."""
        writer = self._jvm.org.apache.spark.sql.statestore.CollectingWriter(self._name)
        stream = self._rows.writeStream.outputMode("update").option(
            "checkpointLocation", str(self.checkpoint)
        )
        stream.trigger(realTime=f"{seconds} seconds")
        self._query = self._session.streams.get(str(stream._jwrite.foreach(writer).start().id()))

    def emitted(self) -> list[str]:
        collector = self._jvm.org.apache.spark.sql.statestore.CollectingWriter
        return str(collector.rows(self._name)).split()

    def wait_for_rows(self, count: int) -> list[str]:
        """Wait until a number of rows has been emitted, and return all."""
        self._wait(lambda: len(self.emitted()) >= count)
        return self.emitted()

    def wait_for_commit(self) -> None:
        """Wait until a batch with the end of the input is committed."""
        self._wait(lambda: self.committed() == self._fed)

    def committed(self) -> int:
        """Return the number of input rows in committed batches."""
        batches = [int(path.name) for path in self.checkpoint.glob("commits/*") if path.name.isdigit()]
        if not batches:
            return 0
        _, _, offsets = (self.checkpoint / "offsets" / str(max(batches))).read_text().partition("}\n")
        return sum(json.loads(offsets).values())

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()

    def _wait(self, condition: Callable[[], bool]) -> None:
        def check() -> bool:
            if not self._query.isActive and self._query.exception() is not None:
                raise self._query.exception()
            return condition()

        assert wait_until(check, 120), (self.emitted(), self._query.lastProgress)


Sessions = Callable[..., Any]


@pytest.fixture
def session_with(spark: Any) -> Sessions:
    """Return a function that makes a session without a provider class, with the given settings."""
    if IS_OLDER:
        pytest.skip("Spark 4.3 permits stateful queries in real-time mode, and checks the provider class")

    def make(**settings: str) -> Any:
        session = spark.newSession()
        session.conf.unset(PROVIDER)
        session.conf.set("spark.sql.shuffle.partitions", "1")
        session.conf.set("spark.sql.streaming.realTimeMode.minBatchDuration", "1s")
        for key, value in settings.items():
            session.conf.set(key, value)
        return session

    return make


@pytest.fixture
def started() -> Iterator[list[RealTimeQuery]]:
    """Return a list whose queries are stopped in the end."""
    queries: list[RealTimeQuery] = []
    yield queries
    for query in queries:
        query.stop()


def aggregated(numbers: Any) -> Any:
    return numbers.selectExpr(f"value % {GROUPS} as k").groupBy("k").count()


def without_duplicates(numbers: Any) -> Any:
    return numbers.dropDuplicates(["value"])


def transformed(numbers: Any) -> Any:
    from pyspark.sql import DataFrame

    session = numbers.sparkSession
    processors = session._jvm.org.apache.spark.sql.statestore.transform.Processors
    return DataFrame(processors.counted(numbers._jdf, GROUPS), session)


def counts_of(numbers: list[int]) -> list[str]:
    """Return what a count emits in update mode, row by row."""
    counts: Counter[int] = Counter()
    rows = []
    for number in numbers:
        counts[number % GROUPS] += 1
        rows.append(f"{number % GROUPS},{counts[number % GROUPS]}")
    return rows


def distinct(numbers: list[int]) -> list[str]:
    return [str(number) for number in dict.fromkeys(numbers)]


OPERATORS = {
    "aggregation": (aggregated, counts_of, {}),
    "dropDuplicates": (without_duplicates, distinct, {}),
    # Spark's list of operators has the class of its own operator only.
    "transformWithState": (transformed, counts_of, {ALLOWLIST: "false"}),
}

FIRST = [1, 2, 3, 4, 5, 1, 4]
SECOND = [1, 7, 8, 2, 9]


def provider_in_log(checkpoint: Path) -> str:
    """Return the provider class in the offset log, from which a restart takes it."""
    newest = max(
        (path for path in checkpoint.glob("offsets/*") if path.name.isdigit()), key=lambda p: int(p.name)
    )
    return str(json.loads(newest.read_text().splitlines()[1])["conf"][PROVIDER])


def state_of(spark: Any, checkpoint: Path) -> list[str]:
    """Return the rows of the newest committed version."""
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
    reader = session.read.format("statestore")
    (operator,) = (
        session.read.format("state-metadata").load(str(checkpoint)).dropDuplicates(["operatorId"]).collect()
    )
    if operator.operatorName.startswith("transformWithState"):
        reader = reader.option("stateVarName", "count")
    return sorted(json.dumps(row.asDict(recursive=True)) for row in reader.load(str(checkpoint)).collect())


@pytest.mark.parametrize(
    "operator",
    ["aggregation", pytest.param("dropDuplicates", marks=pytest.mark.soak), "transformWithState"],
)
def test_real_time_query_equals_rocksdb_across_a_restart(
    spark: Any, session_with: Sessions, started: list[RealTimeQuery], tmp_path: Path, operator: str
) -> None:
    build, expected, settings = OPERATORS[operator]
    states = {}
    for provider, choice in {"ours": {REAL_TIME: "true"}, "rocksdb": {PROVIDER: ROCKSDB}}.items():
        session = session_with(**choice, **settings)
        query = RealTimeQuery(session, tmp_path / provider, build)
        started.append(query)
        query.feed(*FIRST)
        query.start(seconds=1)
        query.wait_for_rows(len(expected(FIRST)))
        query.wait_for_commit()
        query.stop()
        query.start(seconds=1)
        query.feed(*SECOND)
        query.wait_for_rows(len(expected(FIRST + SECOND)))
        query.wait_for_commit()
        query.stop()
        assert sorted(query.emitted()) == sorted(expected(FIRST + SECOND)), provider
        states[provider] = state_of(spark, query.checkpoint)
    assert provider_in_log(tmp_path / "ours") == spark_statestore.PROVIDER_CLASS
    assert list((tmp_path / "ours").glob("state/0/0/chk-*/_metadata"))
    assert not list((tmp_path / "ours").rglob("*.changelog"))
    assert states["ours"] == states["rocksdb"]
    assert len(states["ours"]) > 1


def test_interrupted_real_time_batch_leaves_no_state(
    spark: Any, session_with: Sessions, started: list[RealTimeQuery], tmp_path: Path
) -> None:
    query = RealTimeQuery(session_with(**{REAL_TIME: "true"}), tmp_path, aggregated)
    started.append(query)
    query.feed(*FIRST)
    query.start(seconds=1)
    query.wait_for_commit()
    query.stop()
    assert provider_in_log(tmp_path) == spark_statestore.PROVIDER_CLASS
    query.start(seconds=600)
    query.feed(*SECOND)
    # Rows leave the query long before the end of their batch.
    first = query.wait_for_rows(len(FIRST + SECOND))
    assert sorted(first) == sorted(counts_of(FIRST + SECOND))
    assert query.committed() == len(FIRST)
    query.stop()
    query.start(seconds=1)
    query.wait_for_commit()
    query.stop()
    # The batch ran twice, and its rows are counted once.
    again = Counter(counts_of(FIRST + SECOND)) + Counter(counts_of(FIRST + SECOND)[len(FIRST) :])
    assert Counter(query.emitted()) == again
    counts = [json.loads(row)["value"]["count"] for row in state_of(spark, tmp_path)]
    assert sorted(counts) == sorted(Counter(number % GROUPS for number in FIRST + SECOND).values())


def test_micro_batch_query_of_a_real_time_session_uses_this_store(
    session_with: Sessions, tmp_path: Path
) -> None:
    session = session_with(**{REAL_TIME: "true"})
    spark_statestore.attach(session)
    numbers = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    counts = aggregated(numbers.selectExpr("cast(value as int) as value"))
    stream = counts.writeStream.outputMode("update").format("noop")
    query = stream.option("checkpointLocation", str(tmp_path)).start()
    try:
        assert wait_until(lambda: query.lastProgress is not None and query.lastProgress.batchId >= 1, 60)
    finally:
        query.stop()
    assert provider_in_log(tmp_path) == spark_statestore.PROVIDER_CLASS
    assert list(tmp_path.glob("state/0/0/chk-*"))


def test_session_with_the_provider_class_is_refused_by_spark(
    spark: Any, session_with: Sessions, tmp_path: Path
) -> None:
    session = session_with(**{PROVIDER: spark_statestore.PROVIDER_CLASS})
    query = RealTimeQuery(session, tmp_path, lambda numbers: numbers)
    with pytest.raises(PySparkException) as refused:
        query.start(seconds=1)
    assert refused.value.getCondition() == "STREAMING_REAL_TIME_MODE.SQL_CONFIGURATION_NOT_SUPPORTED"
    assert PROVIDER in str(refused.value)


def test_transform_with_state_needs_the_allowlist_check_off(
    session_with: Sessions, started: list[RealTimeQuery], tmp_path: Path
) -> None:
    query = RealTimeQuery(session_with(**{REAL_TIME: "true"}), tmp_path, transformed)
    started.append(query)
    query.feed(*FIRST)
    query.start(seconds=1)
    with pytest.raises(
        PySparkException, match=r"CheckpointTransformWithStateExec is not in the operator allowlist"
    ):
        query.wait_for_commit()
    assert not list(tmp_path.glob("state/0/0/chk-*"))


def test_stateless_real_time_query_runs_beside_a_stateful_one(
    spark: Any, session_with: Sessions, started: list[RealTimeQuery], tmp_path: Path
) -> None:
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    stream = aggregated(numbers).writeStream.outputMode("update").format("noop")
    stateful = (
        stream.option("checkpointLocation", str(tmp_path / "stateful"))
        .trigger(processingTime="1 second")
        .start()
    )
    try:
        query = RealTimeQuery(
            session_with(), tmp_path / "stateless", lambda numbers: numbers.selectExpr("value * 2")
        )
        started.append(query)
        query.feed(*FIRST)
        query.start(seconds=1)
        assert sorted(map(int, query.wait_for_rows(len(FIRST)))) == sorted(2 * number for number in FIRST)
        batch = stateful.lastProgress.batchId if stateful.lastProgress else 0
        assert wait_until(lambda: stateful.lastProgress and stateful.lastProgress.batchId > batch, 60)
    finally:
        stateful.stop()
    assert provider_in_log(tmp_path / "stateful") == spark_statestore.PROVIDER_CLASS


def test_real_time_option_is_validated_at_the_start(session_with: Sessions, tmp_path: Path) -> None:
    session = session_with(**{REAL_TIME: "yes"})
    with pytest.raises(Exception, match=r"realTimeMode' is '.*', but it must be true or false"):
        RealTimeQuery(session, tmp_path, aggregated).start(seconds=1)


@pytest.mark.skipif(not IS_OLDER, reason="Spark 4.3 needs the option")
def test_real_time_option_is_refused_by_older_sparks(spark: Any) -> None:
    session = spark.newSession()
    session.conf.set(REAL_TIME, "true")
    with pytest.raises(
        Exception, match=r"realTimeMode' is for Spark 4.3 and later, and this is Spark 4\.[012]"
    ):
        aggregated(session.readStream.format("rate").load())
