"""Conversion of running queries between Spark's stores and this one, and back, for each stateful operator."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

import spark_statestore
from spark_statestore.query import QueryCheckpoint
from spark_statestore.rows.source import variable_kinds
from tests.spark.processors_query import NO_EMPTY_BATCHES
from tests.spark.queries import (
    OURS,
    OURS_FOR_JOINS,
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
from tests.support.spark_versions import is_since
from tests.system.upgrades.cases import CASES, SCHEMAS, input_of
from tests.unit.rows import encoder

ALL = [name for name, case in CASES.items() if is_since(case.since) and not name.endswith("all queries")]
IN_ONE_FAMILY = [name for name in ALL if "transformWithState" not in name and "format" not in name]

# Spark's other way of writing RocksDB's versions.
WITH_CHANGELOGS = {STATE_STORE + "rocksdb.changelogCheckpointing.enabled": "true"}


class Converted:
    """A query and a twin that is never converted, over the same input."""

    def __init__(self, spark: Any, path: Path, name: str, provider: str, checkpoint_format: int) -> None:
        case = CASES[name]
        self.spark = spark
        self.path = path
        self.input = input_of(case.reads)
        confs = {**NO_EMPTY_BATCHES, **case.confs, STATE_STORE + "minDeltasForSnapshot": "2"}
        self.query, self.twin = (
            Query(
                spark,
                path / which,
                case.build,
                case.mode,
                SCHEMAS[case.reads],
                provider=provider,
                checkpoint_format=checkpoint_format,
                confs=confs,
            )
            for which in ("query", "twin")
        )
        self.conversions: list[Any] = []

    def run(self, *batches: int) -> None:
        """Run both on the next batches, and compare what they output."""
        outputs: list[Output] = []
        for query in (self.query, self.twin):
            query.feed(*(self.input[batch] for batch in batches))
            outputs.append(query.run())
        assert outputs[0] == outputs[1]
        assert outputs[0], "no batch has run"

    def convert(self, to: str, **options: Any) -> Any:
        """Convert the query, and compare its state before and after as Spark's data source reads it."""
        before = self._state(options)
        files = snapshot(self.query.checkpoint)
        target = self.path / f"converted-{len(self.conversions)}"
        done = spark_statestore.convert(
            self.spark, str(self.query.checkpoint), str(target), to, stopped=True, **options
        )
        assert snapshot(self.query.checkpoint) == files, "the source has changed"
        self.query.checkpoint = target
        self.query._provider = self.query.session_provider = done.provider
        assert self._state(options) == before
        assert not (target / "_in-progress").exists()
        unload_all(self.spark)
        self.conversions.append(done)
        return done

    def _state(self, options: Mapping[str, Any]) -> Counter[str]:
        found = state(self.query)
        if "partitions" in options:
            return Counter(re.sub(r", partition_id=\d+", "", row) for row in found.elements())
        return found


def state(query: Query) -> Counter[str]:
    """Return all state as Spark's data source reads it."""
    (operator, *_) = QueryCheckpoint(str(query.checkpoint)).operators()
    if not operator.name.startswith("transformWithState"):
        return query.state()
    found: Counter[str] = Counter()
    with query._readable():
        for name, kind in variable_kinds(operator).items():
            reader = query.spark.read.format("statestore")
            if kind == "TimerState":
                reader = reader.option("readRegisteredTimers", True)
            else:
                reader = reader.option("stateVarName", name)
            found.update(f"{name} {row!r}" for row in reader.load(str(query.checkpoint)).collect())
    return found


def snapshot(directory: Path) -> dict[str, bytes]:
    """Return all files below a directory with their content."""
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


# Each operator in one of the formats; in the long runs in both.
@pytest.mark.parametrize(
    ("name", "checkpoint_format"),
    [
        pytest.param(name, version, marks=[pytest.mark.soak] if (number + version) % 2 else [])
        for number, name in enumerate(ALL)
        for version in (1, 2)
    ],
)
def test_conversion_from_rocksdb_and_back_continues_query(
    spark: Any, tmp_path: Path, name: str, checkpoint_format: int
) -> None:
    query = Converted(spark, tmp_path, name, ROCKSDB, checkpoint_format)
    query.run(0, 1)
    assert query.convert("statestore").provider in (OURS, OURS_FOR_JOINS)
    query.run(2)
    assert query.convert("rocksdb").provider == ROCKSDB
    query.run(3)


@pytest.mark.parametrize("name", IN_ONE_FAMILY)
def test_conversion_from_hdfs_and_back_continues_query(spark: Any, tmp_path: Path, name: str) -> None:
    query = Converted(spark, tmp_path, name, SPARKS, 1)
    query.run(0, 1)
    assert query.convert("statestore").provider in (OURS, OURS_FOR_JOINS)
    query.run(2)
    assert query.convert("hdfs").provider == SPARKS
    query.run(3)


@pytest.mark.parametrize("name", ["aggregation, update mode", "session windows", "outer join", "limit"])
def test_conversion_to_other_partitions_continues_query(spark: Any, tmp_path: Path, name: str) -> None:
    query = Converted(spark, tmp_path, name, ROCKSDB, 2 if name == "outer join" else 1)
    query.run(0, 1)
    alone = 1 if name == "limit" else None
    assert query.convert("statestore", partitions=5).partitions == {0: alone or 5}
    query.run(2)
    assert query.convert("rocksdb", partitions=3).partitions == {0: alone or 3}
    # Spark cannot do this in any version.
    assert query.convert("rocksdb", partitions=4).partitions == {0: alone or 4}
    query.run(3)


@pytest.mark.parametrize("provider", [SPARKS, ROCKSDB])
def test_several_operators_are_converted_and_continue(spark: Any, tmp_path: Path, provider: str) -> None:
    query = Converted(spark, tmp_path, "aggregation, update mode", provider, 1)
    for one in (query.query, query.twin):
        one.build = three_operators
        one._mode = "append"
    query.run(0, 1)
    done = query.convert("statestore")
    assert {one.operator for one in done.states} == {0, 1, 2}
    query.run(2)
    query.convert("rocksdb" if provider == ROCKSDB else "hdfs")
    query.run(3)


def three_operators(stream: Any) -> Any:
    """Deduplicate, aggregate by windows, and aggregate the windows."""
    from pyspark.sql import functions as F

    distinct = stream.withWatermark("ts", "15 minutes").dropDuplicates(["id", "ts"])
    windows = distinct.groupBy(F.window("ts", "10 minutes"), "k").agg(F.count("*").alias("n"))
    return windows.groupBy(F.window("window", "20 minutes")).agg(F.sum("n").alias("n"))


def test_changelogs_and_a_first_batch_are_converted(spark: Any, tmp_path: Path) -> None:
    with configured(spark, WITH_CHANGELOGS):
        query = Converted(spark, tmp_path, "aggregation, update mode", ROCKSDB, 2)
        query.run(0)
        assert query.convert("statestore", batch=0).batch == 0
        query.run(1, 2)
        query.convert("rocksdb")
        query.run(3)
        assert list(query.query.checkpoint.rglob("*.changelog"))


@settings(max_examples=4 * EFFORT)
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
    here, back = path / "here", path / "back"
    spark_statestore.convert(spark, str(query.checkpoint), str(here), stopped=True)
    found = spark_statestore.read_state(str(here))
    by_number = {
        key["n"]: value["last"]
        for key, value in zip(*(found[c].to_pylist() for c in ("key", "value")), strict=True)
    }
    wanted = dict(enumerate(pa.array(values, row.arrow).to_pylist()))
    assert repr(sorted(by_number.items())) == repr(sorted(wanted.items()))
    spark_statestore.convert(spark, str(here), str(back), "rocksdb", stopped=True)
    states = [
        # `collect` gives maps whose keys are binary in any order; Arrow keeps the order of the row.
        Counter(map(repr, spark.read.format("statestore").load(str(at)).toArrow().to_pylist()))
        for at in (query.checkpoint, here, back)
    ]
    assert states[0] == states[1] == states[2]
    assert states[0]


def last_row(stream: Any) -> Any:
    """Keep the last row of each number."""
    from pyspark.sql import functions as F

    return stream.groupBy("n").agg(F.last("row").alias("row"))
