"""Queries that go on from written state beside which Spark keeps counters and indexes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_statestore import (
    OptionError,
    RowEncodingError,
    bootstrap,
    erase,
    read_state,
    restore,
    savepoint,
    verify,
    verify_absent,
    write_state,
)
from spark_statestore.query.savepoint_lookup import open_checkpoint
from spark_statestore.query.store_snapshot import read_store
from tests.spark.processors import OUTPUT, Interpreter
from tests.spark.processors_query import NO_EMPTY_BATCHES
from tests.spark.queries import JOIN_FORMAT, Query
from tests.spark.test_write_state import SCHEMA, event
from tests.support.spark_versions import NEWEST_JOIN_FORMAT, is_since

pytestmark = pytest.mark.slow

HOUR = 3_600_000
Content = dict[tuple[Any, str], dict[bytes, list[bytes]]]


@dataclass(frozen=True)
class Case:
    """A query, and the states of it that are written."""

    build: Callable[..., Any]
    states: Sequence[str]
    mode: str = "append"
    confs: tuple[tuple[str, str], ...] = ()
    keeps_clock: bool = False


def joined(events: Any) -> Any:
    from pyspark.sql import functions as F

    late = events.withWatermark("t", "1 hour")
    left, right = (
        late.where(f"v % 2 = {rest}").selectExpr(*(f"{name} as {side}_{name}" for name in "kvt"))
        for rest, side in enumerate(("left", "right"))
    )
    near = "left_k = right_k and right_t between left_t - interval 1 hour and left_t + interval 1 hour"
    return left.join(right, F.expr(near), "left_outer")


def joined_by_number(events: Any) -> Any:
    """Join by numbers, some of them null, with a column that is called as one of Spark's own."""
    from pyspark.sql import functions as F

    late = events.withWatermark("t", "1 hour")
    left = late.where("v % 2 = 0").selectExpr("nullif(v % 5, 3) as n", "v % 3 = 0 as matched", "t as left_t")
    right = late.where("v % 2 = 1").selectExpr("nullif(v % 5, 3) as m", "v", "t as right_t")
    near = "n = m and right_t between left_t - interval 1 hour and left_t + interval 1 hour"
    return left.join(right, F.expr(near), "full_outer").selectExpr(
        "n", "matched", "left_t", "m", "v", "right_t"
    )


def joined_without_times(events: Any) -> Any:
    left = events.where("v % 2 = 0").selectExpr("k", "v as left_v")
    right = events.where("v % 2 = 1").selectExpr("k as right_k", "v as right_v")
    return left.join(right, left.k == right.right_k)


def processed(**arguments: Any) -> Callable[..., Any]:
    """Return the query of a processor; before Spark 4.1 in pandas, whose variables are the same."""

    def build(events: Any) -> Any:
        ops = "'append', 'set', 'timer', 'extend', 'put', 'put', 'timer'"
        op = f"element_at(array({ops}), cast(v % 7 as int) + 1)"
        rows = events.withWatermark("t", "1 hour").selectExpr("k", "v as seq", "v as n", "v", f"{op} as op")
        groups, in_rows = rows.groupBy("k"), is_since("4.1")
        run = groups.transformWithState if in_rows else groups.transformWithStateInPandas
        times = "processingTime" if arguments["timers"] == "processing" else "eventTime"
        return run(Interpreter("bigint", pandas=not in_rows, **arguments), OUTPUT, "update", times)

    return build


def case_of_join(form: int, build: Callable[..., Any] = joined) -> Any:
    kind = "keyWithTsToValues" if form == 4 else "keyWithIndexToValue"
    case = Case(
        build,
        [f"left-{kind}", f"right-{kind}"],
        confs=((JOIN_FORMAT, str(form)),),
        # Without event time Spark takes random numbers.
        keeps_clock=build is joined_without_times,
    )
    newer = pytest.mark.skipif(form > NEWEST_JOIN_FORMAT, reason="a later Spark has this format")
    return pytest.param(case, 1 if form == 2 else 2, id=f"{build.__name__}, format {form}", marks=newer)


VARIABLES = ["one", "many", "named"]
JOIN_2, JOIN_3, JOIN_4 = map(case_of_join, (2, 3, 4))
BY_NUMBER_2, BY_NUMBER_4 = (case_of_join(form, joined_by_number) for form in (2, 4))
WITHOUT_TIMES = case_of_join(4, joined_without_times)
WITH_TTL = pytest.param(
    Case(
        processed(timers="processing", ttl=HOUR),
        [*VARIABLES, "$procTimers_keyToTimestamp"],
        "update",
        tuple(NO_EMPTY_BATCHES.items()),
        keeps_clock=True,
    ),
    2,
    id="variables with TTL, and timers by processing time",
)
BY_EVENTS = pytest.param(
    Case(processed(timers="event"), [*VARIABLES, "$eventTimers_keyToTimestamp"], "update"),
    1,
    id="variables, and timers by event time",
)


def with_marks(case: Any, *marks: pytest.MarkDecorator) -> Any:
    return pytest.param(*case.values, id=case.id, marks=[*case.marks, *marks])


def in_soak(*cases: Any) -> list[Any]:
    return [with_marks(case, pytest.mark.soak) for case in cases]


def content_of(path: Any, operator: int = 0) -> Content:
    """Return all rows of all stores of an operator, as bytes."""
    checkpoint = open_checkpoint(str(path))
    content: Content = {}
    for version in checkpoint.stores(checkpoint.require_batch(None), operator):
        for name, table in read_store(checkpoint, version).rows():
            rows = content.setdefault((version.store, name), {})
            for row in table.to_pylist():
                rows.setdefault(row["key"], []).append(row["value"])
    return {where: rows for where, rows in content.items() if rows}


class Copies:
    """Copies of a checkpoint with changed state, one after the other."""

    def __init__(self, directory: Path, source: Any) -> None:
        self._directory = directory
        self._number = 0
        self.path = str(source)

    def write(self, state: str, changes: Any, mode: Any, operator: int = 0) -> tuple[int, int, int]:
        self._number += 1
        target = str(self._directory / f"copy {self._number}")
        result = write_state(self.path, target, changes, mode=mode, operator=operator, **where(state))
        self.path = target
        assert not verify(target).problems
        return result.added, result.changed, result.removed


def where(state: str) -> dict[str, str]:
    return {"store" if "-" in state else "column_family": state}


def started(spark: Any, tmp_path: Path, case: Case, form: int) -> Query:
    query = Query(
        spark,
        tmp_path / "query",
        case.build,
        case.mode,
        SCHEMA,
        checkpoint_format=form,
        confs=dict(case.confs),
    )
    keys = ["a", "b", "c", "größe"]
    rows = [event(keys[number * 7 % 5 % 4], number, number % 3) for number in range(40)]
    query.feed([*rows, event(None, 3)] if case.build is joined else rows, rows[:9])
    query.run()
    return query


@pytest.mark.parametrize(
    ("case", "form"),
    [
        *(with_marks(case, pytest.mark.spark, pytest.mark.oldest) for case in (JOIN_2, WITH_TTL)),
        BY_NUMBER_4,
        BY_EVENTS,
        *in_soak(JOIN_3, JOIN_4, BY_NUMBER_2, WITHOUT_TIMES),
    ],
)
def test_written_state_is_that_of_spark(spark: Any, tmp_path: Path, case: Case, form: int) -> None:
    """State that is emptied and written anew has the same bytes, with all that Spark derives from it."""
    query = started(spark, tmp_path, case, form)
    source = str(query.checkpoint)
    before = content_of(source)
    rows = {state: read_state(source, **where(state)) for state in case.states}
    assert all(table.num_rows > 3 for table in rows.values())
    copies = Copies(tmp_path, source)
    keys = {state: copies.write(state, table.slice(0, 0), "replace")[2] for state, table in rows.items()}
    assert not content_of(copies.path)
    for state, table in rows.items():
        assert copies.write(state, table, "upsert") == (keys[state], 0, 0)
    assert content_of(copies.path) == before
    for state, table in rows.items():
        assert copies.write(state, table, "upsert") == (0, keys[state], 0)
        assert copies.write(state, table, "replace") == (0, keys[state], 0)
    assert content_of(copies.path) == before
    bootstrap(source, str(tmp_path / "begun"), {(0, state): table for state, table in rows.items()})
    assert content_of(tmp_path / "begun") == before

    query.feed([event(key, number, 5) for number, key in enumerate(["b", "new", "a", "größe", "c"] * 2)])
    untouched = query.run()
    query.checkpoint = Path(copies.path)
    again = query.run()
    assert [rows for _, rows in again] == [rows for _, rows in untouched]
    if not case.keeps_clock:
        assert content_of(copies.path) == content_of(source)


@pytest.mark.parametrize(
    ("case", "form"),
    [JOIN_4, WITH_TTL, *in_soak(JOIN_2, JOIN_3, BY_NUMBER_2, BY_NUMBER_4, WITHOUT_TIMES, BY_EVENTS)],
)
def test_erased_key_is_in_no_stream(spark: Any, tmp_path: Path, case: Case, form: int) -> None:
    query = started(spark, tmp_path, case, form)
    field = "field0" if "WithIndex" in case.states[0] or "WithTs" in case.states[0] else "k"
    value = "2" if case.build is joined_by_number else "'a'"
    condition = f"key.{field} = {value}"
    absence = verify_absent(str(query.checkpoint), condition)
    # Everything that Spark keeps of the key.
    assert {keys.state.split(", ", 2)[2] for keys in absence.found} == {
        f"{str(store).split(', ', 2)[2]}, {name}" if ", " in str(store) else name
        for store, name in content_of(query.checkpoint)
    }
    copies = Copies(tmp_path, query.checkpoint)
    for state in case.states:
        copies.write(state, condition, "delete")
    assert verify_absent(copies.path, condition).ok
    query.checkpoint = Path(copies.path)
    query.feed([event("a", 7, 5), event("a", 2, 5)])
    assert query.run()
    assert not verify_absent(copies.path, condition).ok


def test_key_is_erased_from_every_retained_batch(spark: Any, tmp_path: Path) -> None:
    case, form = JOIN_4.values
    case = replace(case, confs=(*case.confs, ("spark.sql.streaming.minBatchesToRetain", "2")))
    query = started(spark, tmp_path, case, form)
    for number in range(5):
        query.feed([event("a", 7 + 14 * number, 5), event("b", 2 + 14 * number, 5), event("a", 4, 6)])
        query.run()
    before = content_of(query.checkpoint)
    saved = savepoint(str(query.checkpoint), str(tmp_path / "savepoints")).path
    erasure = erase(str(query.checkpoint), "key.field0 = 'a'", stopped=True, savepoints=[saved])
    assert len(erasure.batches) > 1
    assert erasure.rows
    assert erasure.absence.ok
    assert erasure.savepoints == (saved,)
    after = content_of(query.checkpoint)
    assert before.keys() >= after.keys()
    assert sum(map(len, after.values())) > 10
    restore(saved, str(tmp_path / "restored"))
    assert content_of(tmp_path / "restored") == after
    for checkpoint in (query.checkpoint, tmp_path / "restored"):
        query.checkpoint = checkpoint
        query.feed([event("a", 1, 5), event("b", 2, 5)])
        assert query.run()
        assert not verify(str(checkpoint)).problems


def test_times_of_joined_rows_are_their_own(spark: Any, tmp_path: Path) -> None:
    case, form = JOIN_4.values
    source = str(started(spark, tmp_path, case, form).checkpoint)
    state = case.states[0]
    rows = read_state(source, **where(state)).to_pylist()
    rows[1]["key"]["__event_time"] += 1
    table = pa.Table.from_pylist(rows, read_state(source, **where(state)).schema)
    with pytest.raises(RowEncodingError, match="row 1 of the changes has another time in its key"):
        write_state(source, str(tmp_path / "target"), table, **where(state))


@pytest.mark.parametrize(("case", "form"), [JOIN_4, WITH_TTL])
def test_derived_states_are_not_written_by_users(spark: Any, tmp_path: Path, case: Case, form: int) -> None:
    source = str(started(spark, tmp_path, case, form).checkpoint)
    for _, name in content_of(source):
        if name not in case.states:
            rows = read_state(source, **where(name))
            with pytest.raises(OptionError, match="What Spark derives from these is written with them"):
                write_state(source, str(tmp_path / "target"), rows, **where(name))
