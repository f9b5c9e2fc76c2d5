"""Queries that go on from state that was written without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_statestore import (
    OptionError,
    RowEncodingError,
    WrittenState,
    bootstrap,
    diff_state,
    gc,
    read_state,
    verify,
    write_state,
)
from spark_statestore.options import OPTION_PREFIX
from tests.spark.processors import OUTPUT, Interpreter
from tests.spark.queries import Query
from tests.support.spark_versions import since

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("t", pa.timestamp("us", tz="UTC"))])
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)


def event(key: str | None, value: int, seconds: int = 0) -> dict[str, Any]:
    return {"k": key, "v": value, "t": BEGIN + timedelta(seconds=seconds)}


def sums(events: Any) -> Any:
    from pyspark.sql import functions as F

    return events.groupBy("k").agg(F.sum("v").alias("s"), F.max(F.struct("v", "k")).alias("m"))


def by_map(events: Any) -> Any:
    from pyspark.sql import functions as F

    return events.groupBy(F.create_map(F.lit("k"), "k").alias("m")).agg(F.sum("v").alias("s"))


def total(events: Any) -> Any:
    from pyspark.sql import functions as F

    return events.agg(F.sum("v").alias("s"))


def distinct(events: Any) -> Any:
    return events.dropDuplicates(["k", "v"]).select("k", "v")


def within_watermark(events: Any) -> Any:
    return events.withWatermark("t", "1 hour").dropDuplicatesWithinWatermark(["k"]).select("k", "v")


def in_pandas(events: Any) -> Any:
    from pyspark.sql.streaming.state import GroupStateTimeout

    def add(key: tuple[str], frames: Iterator[Any], state: Any) -> Iterator[Any]:
        import pandas as pd

        before = state.get[0] if state.exists else 0
        after = before + sum(int(frame["v"].sum()) for frame in frames)
        state.update((after,))
        yield pd.DataFrame({"k": [key[0]], "s": [after]})

    return events.groupBy("k").applyInPandasWithState(
        add, "k string, s long", "s long", "update", GroupStateTimeout.NoTimeout
    )


def in_scala(events: Any) -> Any:
    from pyspark.sql import DataFrame

    keyed = events.withWatermark("t", "1 hour").selectExpr("k", "unix_seconds(t) as seconds", "t")
    groups = events.sparkSession._jvm.org.apache.spark.sql.statestore.GroupCounts
    return DataFrame(groups.over(keyed._jdf), events.sparkSession)


def sessions(events: Any) -> Any:
    from pyspark.sql import functions as F

    late = events.withWatermark("t", "1 hour")
    return late.groupBy("k", F.session_window("t", "2 minutes"), "v").agg(F.count("*").alias("n"))


def processed(events: Any, ttl: int | None = None) -> Any:
    # Large values change nothing.
    first = events.selectExpr("k", "v as seq", "v as n", "v", "if(v < 10, 'set', 'clear_list') as op")
    second = events.selectExpr("k", "v as seq", "v as n", "v", "if(v < 10, 'put', 'clear_list') as op")
    return (
        first.union(second)
        .groupBy("k")
        .transformWithState(
            Interpreter("bigint", ttl=ttl), OUTPUT, "update", "processingTime" if ttl else "none"
        )
    )


def started(
    spark: Any, directory: Path, build: Callable[..., Any], mode: str, form: int = 2, **confs: Any
) -> Query:
    """A query that has processed one batch."""
    query = Query(spark, directory, build, mode, SCHEMA, checkpoint_format=form, confs=confs)
    query.feed([event(key, value) for key in ("a", "b", "c") for value in (1, 2)])
    query.run()
    return query


def go_on(query: Query, target: Path, *rows: dict[str, Any]) -> list[str]:
    """Process one more batch from a new checkpoint, and return its output."""
    assert not verify(str(target)).problems
    query.checkpoint = target
    query.feed(list(rows))
    ((_, output),) = query.run()
    return sorted(output.elements())


def rows_of(state: pa.Table, **keys: Any) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(row["key"].values()): row["value"] for row in state.to_pylist()}


def changed(state: pa.Table, rows: dict[tuple[Any, ...], dict[str, Any]]) -> pa.Table:
    """Rows of the schema of a state."""
    names = [field.name for field in state.schema.field("key").type]
    keys = [dict(zip(names, key, strict=True)) for key in rows]
    return pa.table(
        {
            "key": pa.array(keys, state.schema.field("key").type),
            "value": pa.array(list(rows.values()), state.schema.field("value").type),
        }
    )


@pytest.mark.parametrize("form", [pytest.param(1, marks=[pytest.mark.spark, pytest.mark.oldest]), 2])
def test_aggregation_goes_on_from_written_state(spark: Any, tmp_path: Path, form: int) -> None:
    query = started(spark, tmp_path, sums, "update", form)
    state = read_state(str(query.checkpoint))
    rows_by_key = rows_of(state)
    value = rows_by_key["a",]
    sum_name, max_name = value
    corrected = {sum_name: 1000, max_name: {"v": 50, "k": "größer als acht Bytes"}}
    imported = {sum_name: None, max_name: None}
    rows = {("a",): corrected, ("new " * 5,): corrected, (None,): imported}
    result = write_state(str(query.checkpoint), str(tmp_path / "upserted"), changed(state, rows))
    assert result == WrittenState(batch=0, added=2, changed=1, removed=0)
    result = write_state(
        str(tmp_path / "upserted"), str(tmp_path / "target"), changed(state, {("c",): value}), mode="delete"
    )
    assert result.removed == 1
    keys = ("a", "b", "c", "new " * 5, None)
    output = go_on(query, tmp_path / "target", *(event(key, 3) for key in keys))
    assert output == sorted(
        [
            "Row(k='a', s=1003, m=Row(v=50, k='größer als acht Bytes'))",
            "Row(k='b', s=6, m=Row(v=3, k='b'))",
            "Row(k='c', s=3, m=Row(v=3, k='c'))",
            f"Row(k='{'new ' * 5}', s=1003, m=Row(v=50, k='größer als acht Bytes'))",
            "Row(k=None, s=3, m=Row(v=3, k=None))",
        ]
    )
    assert len(rows_of(read_state(str(query.checkpoint)))) == 5
    # As Spark's data source reads it.
    assert len(query.state()) == 5


def test_aggregation_goes_on_from_a_data_frame(spark: Any, tmp_path: Path) -> None:
    query = started(spark, tmp_path, sums, "update")
    ((sum_name, _), (max_name, _)) = rows_of(read_state(str(query.checkpoint)))["a",].items()
    frame = spark.sql(
        f"""select struct(k) as key, struct(s as `{sum_name}`, struct(s as v, k) as `{max_name}`) as value
        from values ('a', 1000L), ('z', 9L) as t(k, s)"""
    )
    result = write_state(str(query.checkpoint), str(tmp_path / "target"), frame)
    assert result == WrittenState(batch=0, added=1, changed=1, removed=0)
    output = go_on(query, tmp_path / "target", *(event(key, 3) for key in ("a", "b", "z")))
    assert output == [
        "Row(k='a', s=1003, m=Row(v=1000, k='a'))",
        "Row(k='b', s=6, m=Row(v=3, k='b'))",
        "Row(k='z', s=12, m=Row(v=9, k='z'))",
    ]


def test_aggregation_without_keys_goes_on_from_written_state(spark: Any, tmp_path: Path) -> None:
    query = started(spark, tmp_path, total, "complete")
    state = read_state(str(query.checkpoint))
    ((key, value),) = rows_of(state).items()
    rows = changed(state, {key: dict.fromkeys(value, 100)})
    result = write_state(str(query.checkpoint), str(tmp_path / "target"), rows, mode="replace")
    assert result == WrittenState(batch=0, added=0, changed=1, removed=0)
    assert go_on(query, tmp_path / "target", event("a", 5)) == ["Row(s=105)"]


def test_deduplication_goes_on_from_written_state(spark: Any, tmp_path: Path) -> None:
    query = started(spark, tmp_path, distinct, "append")
    state = read_state(str(query.checkpoint))
    value = rows_of(state)["a", 1]
    rows = changed(state, {("z", 9): value, ("a", 1): value})
    result = write_state(str(query.checkpoint), str(tmp_path / "target"), rows, mode="replace")
    assert result == WrittenState(batch=0, added=1, changed=1, removed=5)
    output = go_on(query, tmp_path / "target", event("a", 1), event("a", 2), event("z", 9), event("b", 1))
    assert output == ["Row(k='a', v=2)", "Row(k='b', v=1)"]


def test_keys_with_maps_are_deleted_by_a_predicate_alone(spark: Any, tmp_path: Path) -> None:
    query = started(spark, tmp_path, by_map, "update")
    source = str(query.checkpoint)
    with pytest.raises(OptionError, match="the key of the state has a map"):
        write_state(source, str(tmp_path / "target"), read_state(source), mode="delete")
    (column,) = (field.name for field in read_state(source).schema.field("key").type)
    where = f"key.\"{column}\"['k'] = 'a'"
    result = write_state(source, str(tmp_path / "target"), where, mode="delete")
    assert result == WrittenState(batch=0, added=0, changed=0, removed=1)
    output = go_on(query, tmp_path / "target", event("a", 1), event("b", 1))
    assert output == ["Row(m={'k': 'a'}, s=1)", "Row(m={'k': 'b'}, s=4)"]


def test_deduplication_within_watermark_goes_on_from_written_state(spark: Any, tmp_path: Path) -> None:
    query = started(spark, tmp_path, within_watermark, "append")
    state = read_state(str(query.checkpoint))
    rows = changed(state, {("z",): rows_of(state)["a",]})
    result = write_state(str(query.checkpoint), str(tmp_path / "target"), rows)
    # Batch 1 had no rows, only a new watermark.
    assert result == WrittenState(batch=1, added=1, changed=0, removed=0)
    assert go_on(query, tmp_path / "target", event("a", 1), event("z", 9), event("y", 1)) == [
        "Row(k='y', v=1)"
    ]


def test_pandas_state_goes_on_from_written_state(spark: Any, tmp_path: Path) -> None:
    query = started(spark, tmp_path, in_pandas, "update")
    state = read_state(str(query.checkpoint))
    value = rows_of(state)["a",]
    assert value["groupState"] == {"s": 3}
    rows = changed(state, {(key,): value | {"groupState": {"s": 500}} for key in ("a", "z")})
    write_state(str(query.checkpoint), str(tmp_path / "target"), rows)
    output = go_on(query, tmp_path / "target", event("a", 1), event("b", 1), event("z", 1))
    assert output == ["Row(k='a', s=501)", "Row(k='b', s=4)", "Row(k='z', s=501)"]


def test_state_of_scala_groups_goes_on_from_written_state(spark: Any, tmp_path: Path) -> None:
    query = started(spark, tmp_path, in_scala, "append")
    state = read_state(str(query.checkpoint))
    value = rows_of(state)["a",]
    (count,) = value["groupState"]
    assert value["groupState"] == {count: 2}
    rows = changed(state, {(key,): value | {"groupState": {count: 500}} for key in ("a", "z")})
    write_state(str(query.checkpoint), str(tmp_path / "target"), rows)
    output = go_on(query, tmp_path / "target", event("a", 1), event("b", 1), event("z", 1))
    assert output == ["Row(k='a', n=501)", "Row(k='b', n=3)", "Row(k='z', n=501)"]


@pytest.mark.spark
@pytest.mark.oldest
def test_session_window_goes_on_from_written_state(spark: Any, tmp_path: Path) -> None:
    query = started(spark, tmp_path, sessions, "append")
    state = read_state(str(query.checkpoint))
    rows_by_key = rows_of(state)
    assert len(rows_by_key) == 6
    value = rows_by_key["a", 1, BEGIN]
    assert value["session_window"] == {"start": BEGIN, "end": BEGIN + timedelta(minutes=2)}
    begin = BEGIN + timedelta(seconds=30)
    new = value | {"k": "z", "session_window": {"start": begin, "end": begin + timedelta(hours=2)}}
    wrong = changed(state, {("a", 1, BEGIN): value, ("z", 1, BEGIN): new})
    with pytest.raises(RowEncodingError, match="row 1 of the changes has other grouping columns or another"):
        write_state(str(query.checkpoint), str(tmp_path / "target"), wrong)
    for session in (
        None,
        {"start": BEGIN, "end": None},
        {"start": BEGIN, "end": BEGIN},
        {"start": BEGIN, "end": BEGIN - timedelta(minutes=2)},
    ):
        wrong = changed(state, {("a", 1, BEGIN): value | {"session_window": session}})
        with pytest.raises(RowEncodingError, match=r"row 0.*(does not end after its start|is null)"):
            write_state(str(query.checkpoint), str(tmp_path / "target"), wrong)
    wrong = changed(state, {("a", 1, BEGIN): value | {"count": None}})
    with pytest.raises(RowEncodingError, match=r"row 0.*('count' in its value|'count' is null)"):
        write_state(str(query.checkpoint), str(tmp_path / "target"), wrong)
    rows = changed(state, {("z", 1, begin): new | {"count": 40}, ("a", 1, BEGIN): value | {"count": 500}})
    result = write_state(str(query.checkpoint), str(tmp_path / "upserted"), rows)
    assert (result.added, result.changed) == (1, 1)
    rows = changed(state, {("b", 1, BEGIN): value})
    assert write_state(str(tmp_path / "upserted"), str(tmp_path / "target"), rows, mode="delete").removed == 1
    assert not verify(str(tmp_path / "target")).problems
    query.checkpoint = tmp_path / "target"
    # The sessions of z are one with its event, those of others end with the watermark.
    query.feed([event("z", 1, 3600), event("a", 1, 60)], [event("y", 1, 5 * 3600)])
    output = [row for _, rows in query.run() for row in rows.elements()]
    assert sorted(row.split("session_window=")[0] + row.split(", ")[-1] for row in output) == [
        "Row(k='a', n=1)",
        "Row(k='a', n=501)",
        "Row(k='b', n=1)",
        "Row(k='c', n=1)",
        "Row(k='c', n=1)",
        "Row(k='z', n=41)",
    ]


def test_transform_with_state_goes_on_from_written_state(spark: Any, tmp_path: Path) -> None:
    query = started(spark, tmp_path, processed, "update")
    state = read_state(str(query.checkpoint), column_family="one")
    assert rows_of(state)["a",] == {"v": 2}
    result = write_state(
        str(query.checkpoint),
        str(tmp_path / "one"),
        changed(state, {("a",): {"v": 70}, ("z",): {"v": None}}),
        column_family="one",
    )
    assert result == WrittenState(batch=0, added=1, changed=1, removed=0)
    named = read_state(str(tmp_path / "one"), column_family="named")
    assert named.column_names == ["key", "user_map_key", "user_map_value", "partition_id"]
    rows = [row for row in named.to_pylist() if row["key"] == {"k": "a"}]
    rows.sort(key=lambda row: row["user_map_key"]["n"])
    assert [row["user_map_key"] for row in rows] == [{"n": n, "v": n} for n in (1, 2)]
    rows = [row | {"user_map_value": {"v": 9}} for row in rows] + [rows[0] | {"key": {"k": "z"}}]
    result = write_state(
        str(tmp_path / "one"),
        str(tmp_path / "named"),
        pa.Table.from_pylist(rows, named.schema),
        # Spark's data source names variables like this.
        store="named",
    )
    assert result == WrittenState(batch=0, added=1, changed=2, removed=0)
    result = write_state(
        str(tmp_path / "named"),
        str(tmp_path / "target"),
        pa.Table.from_pylist(rows[:1], named.schema).select(["key", "user_map_key"]),
        column_family="named",
        mode="delete",
    )
    assert result.removed == 1
    a, z = go_on(query, tmp_path / "target", event("a", 10), event("z", 10))
    assert "'one': (70,), 'many': [], 'named': ['((2, 2), (9,))']" in a
    assert "'one': (None,), 'many': [], 'named': ['((1, 1), (1,))']" in z


def appended(events: Any) -> Any:
    op = "element_at(array('append', 'extend', 'replace', 'set'), cast(v div 4 % 4 as int) + 1) as op"
    rows = events.selectExpr("k", "v as seq", "v as n", "v", op)
    return rows.groupBy("k").transformWithState(Interpreter("bigint"), OUTPUT, "update", "none")


def lists_of(path: Any) -> dict[str, list[Any]]:
    lists: dict[str, list[Any]] = {}
    for row in read_state(str(path), column_family="many").to_pylist():
        lists.setdefault(row["key"]["k"], []).append(row["list_element"]["v"])
    lengths = rows_of(read_state(str(path), column_family="$rowCounter_many"))
    # Spark keeps the number of values beside them.
    assert {key: value["count"] for (key,), value in lengths.items()} == {k: len(v) for k, v in lists.items()}
    return lists


@pytest.mark.spark
@since("4.1", "transformWithState of rows in Python")
@pytest.mark.parametrize("form", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_list_goes_on_from_written_state(spark: Any, tmp_path: Path, form: int) -> None:
    query = Query(spark, tmp_path / "query", appended, "update", SCHEMA, checkpoint_format=form)
    query.feed([event("abcd"[n % 4], n) for n in range(40)], [event("abcd"[n % 3], n) for n in range(5)])
    query.run()
    source = str(query.checkpoint)
    before = lists_of(source)
    assert len(before) == 4
    many = read_state(source, column_family="many")
    assert many.column_names == ["key", "list_element", "partition_id"]

    def write(origin: str, target: str, rows: Any, mode: Any = "upsert") -> tuple[int, int, int]:
        result = write_state(
            str(tmp_path / origin), str(tmp_path / target), rows, column_family="many", mode=mode
        )
        return result.added, result.changed, result.removed

    assert write(source, "emptied", many.slice(0, 0), "replace") == (0, 0, 4)
    assert not lists_of(tmp_path / "emptied")
    assert write("emptied", "filled", many) == (4, 0, 0)
    assert lists_of(tmp_path / "filled") == before
    bootstrap(source, str(tmp_path / "begun"), {(0, "many"): many})
    assert lists_of(tmp_path / "begun") == before
    rows = [{"key": {"k": k}, "list_element": {"v": v}} for k, v in (("a", 7), ("a", 5), ("z", None))]
    assert write(source, "put", pa.Table.from_pylist(rows)) == (1, 1, 0)
    b = many.filter(pc.field("key", "k") == "b")
    assert b.num_rows > 1
    assert write("put", "deleted", b, "delete") == (0, 0, 1)
    remaining = {key: values for key, values in before.items() if key != "b"}
    assert lists_of(tmp_path / "deleted") == remaining | {"a": [7, 5], "z": [None]}
    fewer = {
        key: [value for value in values if value is None or value >= 20] for key, values in before.items()
    }
    less = sum(fewer[key] != values for key, values in before.items())
    assert write(source, "fewer", pc.field("list_element", "v") < 20, "delete") == (0, less, 0)
    assert lists_of(tmp_path / "fewer") == fewer

    more = [event("e", 1), event("a", 2), event("b", 4), event("z", 5)]
    untouched = go_on(query, query.checkpoint, *more)
    query.checkpoint = tmp_path / "filled"
    assert sorted(row for _, rows in query.run() for row in rows.elements()) == untouched
    assert lists_of(tmp_path / "filled") == lists_of(source)
    query.checkpoint = tmp_path / "deleted"
    query.run()
    assert lists_of(tmp_path / "deleted") == remaining | {
        "a": [7, 5, 2],
        "b": [4, 4],
        "e": [1],
        "z": [None, 5, 5, 5],
    }


# In place

Changes = set[tuple[int, str, str, int | None]]


def feed_of(query: Query, first: int) -> Changes:
    """Return the changes of Spark's feed: batch, change type, key and sum."""
    options = {"readChangeFeed": "true", "changeStartBatchId": first}
    with query._readable():
        rows = query.spark.read.format("statestore").options(**options).load(str(query.checkpoint)).collect()
    return {
        (row.batch_id, row.change_type, row.key.k, None if row.value is None else row.value.sum)
        for row in rows
    }


@pytest.mark.parametrize(("form", "commit"), [(1, "task"), (2, "batch")])
def test_query_goes_on_after_a_write_in_place(spark: Any, tmp_path: Path, form: int, commit: str) -> None:
    confs = {OPTION_PREFIX + "commit": commit}
    query, untouched = (
        started(spark, tmp_path / name, sums, "update", form, **confs) for name in ("query", "untouched")
    )
    query.feed([event("a", 4), event("b", 4)])
    untouched.feed([event("a", 10), event("b", 4), event("z", 3)])
    query.run()
    untouched.run()
    before = query.state()
    expected = rows_of(read_state(str(untouched.checkpoint)))
    rows = changed(read_state(str(query.checkpoint)), {key: expected[key] for key in (("a",), ("z",))})
    # The executor still has the state of before in memory.
    result = write_state(str(query.checkpoint), None, rows, in_place=True, stopped=True)
    assert (result.batch, result.added, result.changed) == (1, 1, 1)
    assert not verify(str(query.checkpoint)).problems
    outputs = []
    for ran in (query, untouched):
        ran.feed([event("a", 1), event("z", 1)], [event("a", 1), event("c", 1)])
        outputs.append(ran.run())
    assert outputs[0] == outputs[1]
    assert rows_of(read_state(str(query.checkpoint))) == rows_of(read_state(str(untouched.checkpoint)))
    assert not gc(str(query.checkpoint), dry_run=True, older_than=0, stopped=True).skipped
    differences = diff_state(str(query.checkpoint), 0, 1).to_pylist()
    assert {(row["change"], row["key"]["k"]) for row in differences} == {
        ("changed", "a"),
        ("changed", "b"),
        ("added", "z"),
    }
    assert query.state() == untouched.state() != before
    # The feed of the batch has its changes and those of the write.
    assert feed_of(query, 1) == feed_of(untouched, 1)
    assert {row for row in feed_of(query, 0) if row[0] == 1} == {
        (1, "update", "a", 13),
        (1, "update", "b", 7),
        (1, "update", "z", 3),
    }
