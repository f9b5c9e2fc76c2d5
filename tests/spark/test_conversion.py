"""Conversion of running queries between Spark's stores and this one, and back, for each stateful operator."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyspark.sql import functions as F

import spark_statestore
from spark_statestore.query import QueryCheckpoint
from spark_statestore.rows.source import variable_kinds
from tests.spark.golden import Recordings
from tests.spark.processors_query import NO_EMPTY_BATCHES
from tests.spark.queries import (
    OURS,
    ROCKSDB,
    SPARKS,
    STATE_STORE,
    Output,
    Query,
    configured,
    unload_all,
)
from tests.spark.test_rows import FROM_ARROW
from tests.support.effort import EFFORT
from tests.support.spark_versions import NEWEST_READABLE_FORMAT, is_since
from tests.support.trees import files_below
from tests.system.upgrades.cases import CASES, SCHEMAS, Case, input_of
from tests.unit.cli.another_process import run_elsewhere
from tests.unit.rows import encoder

# Spark's other way of writing RocksDB's versions.
WITH_CHANGELOGS = {STATE_STORE + "rocksdb.changelogCheckpointing.enabled": "true"}

NAMES = {ROCKSDB: "rocksdb", SPARKS: "hdfs"}


def three_operators(stream: Any) -> Any:
    """Deduplicate, aggregate by windows, and aggregate the windows."""
    distinct = stream.withWatermark("ts", "15 minutes").dropDuplicates(["id", "ts"])
    windows = distinct.groupBy(F.window("ts", "10 minutes"), "k").agg(F.count("*").alias("n"))
    return windows.groupBy(F.window("window", "20 minutes")).agg(F.sum("n").alias("n"))


QUERIES = {**CASES, "several operators": Case(three_operators)}
ALL = [name for name, case in QUERIES.items() if is_since(case.since) and not name.endswith("all queries")]


class Converted:
    """A query that is converted, and compared with the recording of one that is not, over the same input."""

    def __init__(
        self,
        spark: Any,
        path: Path,
        recordings: Recordings,
        name: str,
        provider: str,
        checkpoint_format: int,
    ) -> None:
        self.spark = spark
        self.path = path
        self.name = name
        self.input = input_of(QUERIES[name].reads)
        self.query = self._query("query", provider=provider, checkpoint_format=checkpoint_format)
        self.conversions: list[Any] = []
        self._recordings = recordings
        self._unconverted: Output = []

    def _query(self, directory: str, **options: Any) -> Query:
        case = QUERIES[self.name]
        confs = {**NO_EMPTY_BATCHES, **case.confs, STATE_STORE + "minDeltasForSnapshot": "2"}
        path, schema = self.path / directory, SCHEMAS[case.reads]
        return Query(self.spark, path, case.build, case.mode, schema, confs=confs, **options)

    def run(self, *batches: int) -> None:
        """Run it on the next batches, and compare its output."""
        self.query.feed(*(self.input[batch] for batch in batches))
        output = self.query.run()
        assert output, "no batch has run"
        name = f"{self.name}, batches {', '.join(map(str, batches))}"
        self._recordings.compare(name, output, lambda: self._without_conversion(batches))

    def _without_conversion(self, batches: Sequence[int]) -> Output:
        """Return the output of batches where the query is neither converted nor started again."""
        if not self._unconverted:
            query = self._query("other", provider=ROCKSDB)
            query.feed(*self.input)
            self._unconverted = query.run()
        return [output for output in self._unconverted if output[0] in batches]

    def convert(self, to: str, **options: Any) -> Any:
        """Convert the query, and compare its state before and after as Spark's data source reads it."""
        before = self._state(options)
        formats = [self.query._confs[STATE_STORE + "checkpointFormatVersion"]]
        files = files_below(self.query.checkpoint)
        target = self.path / f"converted-{len(self.conversions)}"
        conversion = spark_statestore.convert(
            self.spark, str(self.query.checkpoint), str(target), to, stopped=True, **options
        )
        assert files_below(self.query.checkpoint) == files, "the source has changed"
        operators = QueryCheckpoint(str(target)).operators()
        assert {state.operator for state in conversion.states} == {operator.id for operator in operators}
        self.go_on_from(target, conversion.provider)
        formats.append(str(conversion.checkpoint_format))
        self.query._confs[STATE_STORE + "checkpointFormatVersion"] = formats[-1]
        assert self._state(options) == before or max(map(int, formats)) > NEWEST_READABLE_FORMAT
        assert not (target / "_in-progress").exists()
        if is_since("4.1"):
            # Spark 4.0 may wait for its own maintenance there, for minutes.
            unload_all(self.spark)
        self.conversions.append(conversion)
        return conversion

    def go_on_from(self, target: Path, provider: str) -> None:
        """Let the query continue from another location, with its state in another store."""
        self.query.checkpoint = target
        self.query._provider = self.query.session_provider = provider

    def _state(self, options: Mapping[str, Any]) -> Counter[str]:
        rows = state(self.query)
        if "partitions" in options:
            return Counter(re.sub(r", partition_id=\d+", "", row) for row in rows.elements())
        return rows


def state(query: Query) -> Counter[str]:
    """Return all state as Spark's data source reads it; nothing where it cannot."""
    if int(query._confs[STATE_STORE + "checkpointFormatVersion"]) > NEWEST_READABLE_FORMAT:
        return Counter()
    (operator, *_) = QueryCheckpoint(str(query.checkpoint)).operators()
    if not operator.name.startswith("transformWithState"):
        return query.state()
    rows: Counter[str] = Counter()
    with query._readable():
        for name, kind in variable_kinds(operator).items():
            reader = query.spark.read.format("statestore")
            if kind == "TimerState":
                reader = reader.option("readRegisteredTimers", True)
            else:
                reader = reader.option("stateVarName", name)
            rows.update(f"{name} {row!r}" for row in reader.load(str(query.checkpoint)).collect())
    return rows


# Beyond the long runs. The copies of a state differ by its stores, column families and orders of keys; an
# aggregation is in the tests below. A join with several stores is converted with Spark 4.2.
USUAL = [
    ("outer join, state format 4", ROCKSDB, 1) if is_since("4.3") else ("outer join", ROCKSDB, 2),
    ("transformWithState, Scala, timers", ROCKSDB, 1),
    ("several operators", SPARKS, 1),
]

# In `make test-spark`.
EVERYWHERE = ("outer join", "transformWithState, Scala, timers")


def starts() -> Iterator[Any]:
    """Yield queries with each store and checkpoint format that they are converted from."""
    for name in ALL:
        possible = [(ROCKSDB, 1), (ROCKSDB, 2)]
        if "transformWithState" not in name and "format" not in name:
            possible.append((SPARKS, 1))
        if not is_since("4.1") and name in ("aggregation without keys", "limit"):
            # Spark 4.0 refuses the first batch of a query with one partition in format 2.
            possible.remove((ROCKSDB, 2))
        for provider, checkpoint_format in possible:
            marks = []
            if (name, provider, checkpoint_format) not in USUAL:
                marks = [pytest.mark.soak]
            elif name in EVERYWHERE and is_since("4.1"):
                marks = [pytest.mark.spark]
            about = f"{name}, {NAMES[provider]} v{checkpoint_format}"
            yield pytest.param(name, provider, checkpoint_format, marks=marks, id=about)


@pytest.mark.parametrize(("name", "provider", "checkpoint_format"), list(starts()))
def test_query_continues_after_its_conversion_and_back(
    spark: Any, tmp_path: Path, recordings: Recordings, name: str, provider: str, checkpoint_format: int
) -> None:
    query = Converted(spark, tmp_path, recordings, name, provider, checkpoint_format)
    query.run(0, 1)
    assert query.convert("statestore").provider == OURS
    query.run(2)
    assert query.convert(NAMES[provider]).provider == provider
    query.run(3)


@pytest.mark.parametrize(
    "name", ["session windows", "limit", pytest.param("outer join", marks=pytest.mark.soak)]
)
def test_conversion_to_other_partitions_continues_query(
    spark: Any, tmp_path: Path, recordings: Recordings, name: str
) -> None:
    query = Converted(spark, tmp_path, recordings, name, ROCKSDB, 2 if name == "outer join" else 1)
    query.run(0, 1)
    alone = 1 if name == "limit" else None
    # Spark cannot do this in any version.
    assert query.convert("rocksdb", partitions=5).partitions == {0: alone or 5}
    query.run(2)
    assert query.convert("statestore", partitions=3).partitions == {0: alone or 3}
    query.run(3)


@pytest.mark.parametrize(
    ("to", "target_format", "checkpoint_format", "options"),
    [
        ("rocksdb", None, 2, {"partitions": 3}),
        ("rocksdb", 1, 1, {}),
        pytest.param("hdfs", None, 1, {}, marks=[pytest.mark.spark, pytest.mark.oldest]),
    ],
    ids=["to RocksDB", "to RocksDB in v1", "to HDFSBacked"],
)
def test_query_continues_after_its_conversion_to_another_format(
    spark: Any,
    tmp_path: Path,
    recordings: Recordings,
    to: str,
    target_format: int | None,
    checkpoint_format: int,
    options: Mapping[str, Any],
) -> None:
    query = Converted(spark, tmp_path, recordings, "aggregation, update mode", SPARKS, 1)
    query.run(0, 1)
    assert query.convert("statestore", checkpoint_format=2, **options).checkpoint_format == 2
    query.run(2)
    conversion = query.convert(to, checkpoint_format=target_format, **options)
    assert conversion.checkpoint_format == checkpoint_format
    query.run(3)


def test_changelogs_and_a_first_batch_are_converted(
    spark: Any, tmp_path: Path, recordings: Recordings
) -> None:
    with configured(spark, WITH_CHANGELOGS):
        query = Converted(spark, tmp_path, recordings, "aggregation, update mode", ROCKSDB, 2)
        query.run(0)
        assert query.convert("statestore", batch=0).batch == 0
        query.run(1, 2)
        query.convert("rocksdb")
        query.run(3)
        assert list(query.query.checkpoint.rglob("*.changelog"))


def test_command_converts_a_query(spark: Any, tmp_path: Path, recordings: Recordings) -> None:
    query = Converted(spark, tmp_path, recordings, "aggregation, update mode", OURS, 2)
    query.run(0, 1)
    source, target = str(query.query.checkpoint), tmp_path / "target"
    files = files_below(query.query.checkpoint)
    options = ["--to", "rocksdb", "--partitions", "3", "--stopped"]
    # In a process of its own: one has one Spark session.
    session = ["--master", "local[2]", "--conf", "spark.driver.memory=512m"]
    ((code, report),) = run_elsewhere([["convert", source, str(target), *options, *session]])
    assert code == 0, report
    assert (report["source_provider"], report["provider"], report["batch"]) == (OURS, ROCKSDB, 1)
    assert report["partitions"] == {"0": 3}
    (converted,) = report["states"]
    assert converted["rows"] == report["rows"] > 0
    assert files_below(query.query.checkpoint) == files
    query.go_on_from(target, ROCKSDB)
    query.run(2)


@pytest.mark.soak
@settings(max_examples=2 * EFFORT)
@given(st.data())
def test_generated_rows_are_equal_after_conversion(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    row = encoder.struct_of(
        data.draw(st.lists(encoder.columns_of(FROM_ARROW, least=1), min_size=4, max_size=8))
    )
    values = data.draw(st.lists(row.values, min_size=3, max_size=9))
    path = tmp_path_factory.mktemp("generated")
    schema = pa.schema([("n", pa.int64()), ("row", row.arrow)])
    query = Query(
        spark, path, last_row, "update", schema, provider=ROCKSDB, collect=lambda batch: [batch.count()]
    )
    query.feed([{"n": number, "row": value} for number, value in enumerate(values)])
    query.run()
    here, back = there_and_back(spark, query.checkpoint, path)
    table = spark_statestore.read_state(str(here))
    by_number = {
        key["n"]: value["last"]
        for key, value in zip(*(table[c].to_pylist() for c in ("key", "value")), strict=True)
    }
    expected = dict(enumerate(pa.array(values, row.arrow).to_pylist()))
    assert repr(sorted(by_number.items())) == repr(sorted(expected.items()))
    states = [
        # `collect` gives maps whose keys are binary in any order; Arrow keeps the order of the row.
        Counter(map(repr, spark.read.format("statestore").load(str(at)).toArrow().to_pylist()))
        for at in (query.checkpoint, here, back)
    ]
    assert states[0] == states[1] == states[2]
    assert states[0]


def there_and_back(spark: Any, checkpoint: Path, path: Path) -> tuple[Path, Path]:
    """Convert a checkpoint to this store and from there to RocksDB, and return both copies."""
    here, back = path / "here", path / "back"
    spark_statestore.convert(spark, str(checkpoint), str(here), stopped=True)
    spark_statestore.convert(spark, str(here), str(back), "rocksdb", stopped=True)
    return here, back


def last_row(stream: Any) -> Any:
    """Keep the last row of each number."""
    return stream.groupBy("n").agg(F.last("row").alias("row"))
