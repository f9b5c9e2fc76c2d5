"""Conversion of running queries between Spark's stores and this one, and back, for each stateful operator."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import spark_statestore
from spark_statestore.query import QueryCheckpoint
from spark_statestore.rows.source import variable_kinds
from tests.spark.processors_query import NO_EMPTY_BATCHES
from tests.spark.queries import OURS, OURS_FOR_JOINS, ROCKSDB, SPARKS, STATE_STORE, Output, Query, unload_all
from tests.support.spark_versions import is_since
from tests.system.upgrades.cases import CASES, SCHEMAS, input_of

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
        before = state(self.query)
        files = snapshot(self.query.checkpoint)
        target = self.path / f"converted-{len(self.conversions)}"
        done = spark_statestore.convert(
            self.spark, str(self.query.checkpoint), str(target), to, stopped=True, **options
        )
        assert snapshot(self.query.checkpoint) == files, "the source has changed"
        self.query.checkpoint = target
        self.query._provider = self.query.session_provider = done.provider
        assert state(self.query) == before
        assert not (target / "_in-progress").exists()
        unload_all(self.spark)
        self.conversions.append(done)
        return done


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
