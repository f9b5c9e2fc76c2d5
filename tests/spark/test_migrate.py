"""Changed queries that go on with the state of the old ones, as if they had processed all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F

from spark_statestore import Migration, OptionError, RowEncodingError, migrate, verify
from tests.spark.processors import DAY, OUTPUT, Interpreter
from tests.spark.processors_query import NO_EMPTY_BATCHES
from tests.spark.queries import Query
from tests.support.spark_versions import since

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int32()), ("t", pa.timestamp("us", tz="UTC"))])
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)

Build = Callable[[Any], Any]
Outputs = list[Counter[str]]


def event(key: str, value: int, seconds: int) -> dict[str, Any]:
    return {"k": key, "v": value, "t": BEGIN + timedelta(seconds=seconds)}


HISTORY = [[event("abcde"[n % 5], n + 60 * part, 10 * n + 600 * part) for n in range(60)] for part in (0, 1)]
"""Twenty minutes in two batches; each row is there once."""

LATER = [
    [event("abcdefg"[(n + part) % 7], 1000 + n // 2, 1200 + 200 * part + 10 * n) for n in range(20)]
    for part in (0, 1)
]
CLOSING = [[event("z", 1, 7200)], [event("z", 2, 7300)]]
"""The second batch has the watermark of the first."""


both_formats = pytest.mark.parametrize("form", [pytest.param(1, marks=pytest.mark.soak), 2])


class Change:
    """An old query, the changed one, and a query that was always like that."""

    def __init__(
        self,
        spark: Any,
        directory: Path,
        before: Build,
        after: Build,
        mode: str,
        form: int = 2,
        runs: int = 1,
        **options: Any,
    ) -> None:
        def query(name: str, build: Build) -> Query:
            return Query(spark, directory / name, build, mode, SCHEMA, checkpoint_format=form, **options)

        self.old, self.new = query("old", before), query("new", after)
        self.always = query("always", after)
        self._target = directory / "target"
        self.old.feed(*HISTORY)
        assert self.old.run()
        for number in range(runs):
            self.new.feed([event("sample", 1, number)])
            self.new.run()

    def migrate(self, **arguments: Any) -> Migration:
        """Take the state to the changed query, after a trial that writes nothing."""
        places = (str(self.old.checkpoint), str(self.new.checkpoint), str(self._target))
        tried = migrate(*places, dry_run=True, **arguments)
        assert not self._target.exists()
        migration = migrate(*places, **arguments)
        assert migration == tried
        assert not verify(str(self._target)).problems
        return migration

    def output(self) -> Outputs:
        """Return the output of the changed query after its history."""
        self.new.go_on(self.old, self._target)
        self.new.feed(*LATER, *CLOSING)
        out = self.new.run()
        assert out[0][0] == len(self.old.progress)
        return [rows for _, rows in out]

    def expected(self) -> Outputs:
        """Return the output of the query that was always like that."""
        self.always.feed(*HISTORY)
        self.always.run()
        self.always.feed(*LATER, *CLOSING)
        return [rows for _, rows in self.always.run()]


def counts(events: Any) -> Any:
    return events.groupBy("k").count()


@pytest.mark.spark
@pytest.mark.oldest
@both_formats
def test_aggregates_are_added(spark: Any, tmp_path: Path, form: int) -> None:
    def more(events: Any) -> Any:
        return events.groupBy("k").agg(
            F.sum("v").alias("s"),
            F.count("*").alias("n"),
            F.max("v").alias("high"),
            F.first("v").alias("first"),
            F.sum(F.col("v").cast("decimal(20,2)")).alias("exact"),
        )

    change = Change(spark, tmp_path, counts, more, "update", form)
    migration = change.migrate()
    numbers = Counter(row["k"] for part in HISTORY for row in part)
    values_by_key: dict[str, list[int]] = {}
    expected = []
    for part in (*LATER, *CLOSING):
        for row in part:
            values_by_key.setdefault(row["k"], []).append(row["v"])
        rows = [
            Row(
                k=k,
                s=sum(values),
                n=numbers[k] + len(values),
                high=max(values),
                first=values[0],
                exact=pa.scalar(sum(values)).cast(pa.decimal128(30, 2)).as_py(),
            )
            for k, values in values_by_key.items()
            if any(row["k"] == k for row in part)
        ]
        expected.append(Counter(map(repr, rows)))
    assert change.output() == expected
    assert str(migration).splitlines()[:5] == [
        "batch 1",
        "operator 0, default: 5 keys of operator 0, default",
        "    key.k          = key.k",
        "    value.sum      = null",
        "    value.count    = value.count",
    ]


@pytest.mark.soak
def test_aggregates_are_removed_and_widened(spark: Any, tmp_path: Path) -> None:
    def several(events: Any) -> Any:
        return events.groupBy("k").agg(F.avg("v").alias("m"), F.count("*").alias("n"), F.max("v").alias("h"))

    def fewer(events: Any) -> Any:
        return events.groupBy("k").agg(F.max(F.col("v").cast("bigint")).alias("h"), F.avg("v").alias("m"))

    change = Change(spark, tmp_path, several, fewer, "update")
    with pytest.raises(OptionError, match=r"value\.sum is of avg, or sum and count"):
        change.migrate()
    # The fields of the average, and not the count of rows.
    average = {f"value.{name}": pc.field("value", name) for name in ("sum", "count")}
    change.migrate(columns={0: average})
    assert change.output() == change.expected()


def test_column_of_the_key_is_added(spark: Any, tmp_path: Path) -> None:
    def by_country(events: Any) -> Any:
        return events.selectExpr("k", "if(v < 0, 'FR', 'DE') as country").groupBy("country", "k").count()

    change = Change(spark, tmp_path, counts, by_country, "update")
    migration = change.migrate(columns={0: {"key.country": pa.scalar("DE")}})
    assert migration.states[0].columns[0] == ("key.country", "DE")
    assert change.output() == change.expected()


@pytest.mark.soak
def test_values_are_computed_from_old_ones(spark: Any, tmp_path: Path) -> None:
    def totals(events: Any) -> Any:
        return events.groupBy("k").agg(F.sum(F.lit(2)).alias("twice"), F.count("*").alias("n"))

    change = Change(spark, tmp_path, counts, totals, "update")
    change.migrate(columns={0: {"value.sum": pc.field("value", "count") * 2}})
    assert change.output() == change.expected()


@both_formats
def test_operator_is_put_in_front_and_removed(spark: Any, tmp_path: Path, form: int) -> None:
    def distinct(events: Any) -> Any:
        return counts(events.dropDuplicates(["k", "v"]))

    change = Change(spark, tmp_path / "added", counts, distinct, "update", form)
    migration = change.migrate()
    assert {state.taken_from for state in migration.states} == {None, (0, "default")}
    # The later rows repeat each other, and none of the history.
    assert change.output() == change.expected()

    change = Change(spark, tmp_path / "removed", distinct, counts, "update", form)
    names = [operator.name for operator in operators(change.old)]
    migration = change.migrate(drop=[names.index("dedupe")])
    assert migration.dropped == ((f"operator {names.index('dedupe')} (dedupe)", 120),)
    assert change.output() == change.expected()


def operators(query: Query) -> Any:
    from spark_statestore.query import QueryCheckpoint

    return QueryCheckpoint(str(query.checkpoint)).operators()


@pytest.mark.soak
def test_columns_without_duplicates_are_fewer(spark: Any, tmp_path: Path) -> None:
    change = Change(
        spark,
        tmp_path,
        lambda events: events.dropDuplicates(["k", "v"]).select("k"),
        lambda events: events.dropDuplicates(["k"]).select("k"),
        "append",
    )
    change.migrate()
    output = change.output()
    assert output == change.expected()
    assert sum(map(len, output)) == 3


def joined(how: str, *columns: str) -> Build:
    def build(events: Any) -> Any:
        left = events.selectExpr("k", "v", "t", *columns).withWatermark("t", "5 minutes").where("v % 3 != 0")
        right = events.selectExpr("k as k2", "v as v2", "t as t2").withWatermark("t2", "5 minutes")
        near = "k = k2 and v2 > v and t2 between t and t + interval 3 minutes"
        return left.join(right, F.expr(near), how)

    return build


def test_inner_join_becomes_an_outer_one(spark: Any, tmp_path: Path) -> None:
    change = Change(spark, tmp_path, joined("inner"), joined("left_outer"), "append")
    migration = change.migrate()
    assert all(not state.columns for state in migration.states)
    output = change.output()
    assert output == change.expected()
    assert any("k2=None" in row for rows in output for row in rows)


@pytest.mark.soak
@since("4.3", "state format 4 of joins")
def test_event_time_of_a_join_of_format_4_is_given(spark: Any, tmp_path: Path) -> None:
    def build(*times: str) -> Build:
        def build(events: Any) -> Any:
            left = events.selectExpr("k", "v", "t").where("v % 3 != 0")
            right = events.selectExpr("k as k2", "v as v2", "t as t2")
            if times:
                left, right = left.withWatermark("t", "5 minutes"), right.withWatermark("t2", "5 minutes")
            return left.join(right, F.expr("k = k2 and t2 between t and t + interval 3 minutes"))

        return build

    confs = {"spark.sql.streaming.join.stateFormatVersion": "4"}
    change = Change(spark, tmp_path, build(), build("timely"), "append", confs=confs)
    with pytest.raises(
        OptionError, match="the event time of the rows is t, and in the old query there was none"
    ):
        change.migrate(operators={0: 0})
    columns = {
        (0, f"{side}-keyWithTsToValues"): {"key.__event_time": pc.field("value", name).cast(pa.int64())}
        for side, name in (("left", "t"), ("right", "t2"))
    }
    change.migrate(operators={0: 0}, columns=columns)
    output = change.output()
    assert output == change.expected()
    assert sum(map(len, output)) > 20


@both_formats
def test_column_is_added_to_a_join(spark: Any, tmp_path: Path, form: int) -> None:
    after = joined("left_outer", "v * 2 as double")
    change = Change(spark, tmp_path, joined("left_outer"), after, "append", form)
    state = (0, "left-keyWithIndexToValue")
    with pytest.raises(OptionError, match=r"value\.\w*double is not in the old state|has no column"):
        change.migrate(columns={state: {"value.other": 1}})
    migration = change.migrate(columns={state: {"value.double": pc.field("value", "v") * 2}})
    assert sum(bool(state.columns) for state in migration.states) == 1
    output = change.output()
    assert output == change.expected()
    assert any("k2=None" in row for rows in output for row in rows)


@since("4.3", "state format 4 of joins")
def test_join_of_format_4_goes_on_if_it_is_the_same(spark: Any, tmp_path: Path) -> None:
    outer = joined("left_outer")
    confs = {"spark.sql.streaming.join.stateFormatVersion": "4"}
    change = Change(spark, tmp_path, outer, outer, "append", confs=confs)
    with pytest.raises(OptionError, match=r"an inner join does not keep .* say operators=\{0: 0\}"):
        change.migrate()
    with pytest.raises(OptionError, match="belong together: drop it whole"):
        change.migrate(operators={0: 0}, drop=[(0, "right-keyWithTsToValues")])
    change.migrate(operators={0: 0})
    output = change.output()
    assert output == change.expected()
    assert any("k2=None" in row for rows in output for row in rows)


def test_new_timeouts_have_not_passed(spark: Any, tmp_path: Path) -> None:
    def counted(timeout: str) -> Build:
        def count(key: Any, frames: Any, state: Any) -> Any:
            import pandas as pd

            if state.hasTimedOut:
                state.remove()
                yield pd.DataFrame({"k": [f"{key[0]} has expired"], "n": [0]})
                return
            before = state.get[0] if state.exists else 0
            state.update((before + sum(map(len, frames)),))
            if timeout == "EventTimeTimeout":
                state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 60_000)
            yield pd.DataFrame({"k": [key[0]], "n": [state.get[0]]})

        def build(events: Any) -> Any:
            timed = events.withWatermark("t", "1 minute")
            return timed.groupBy("k").applyInPandasWithState(
                count, "k string, n bigint", "n bigint", "update", timeout
            )

        return build

    change = Change(spark, tmp_path, counted("NoTimeout"), counted("EventTimeTimeout"), "update")
    migration = change.migrate()
    assert ("value.timeoutTimestamp", "-1") in migration.states[0].columns
    output = change.output()
    numbers = Counter(row["k"] for part in (*HISTORY, LATER[0]) for row in part)
    keys = {row["k"] for row in LATER[0]}
    assert output[0] == Counter(repr(Row(k=k, n=numbers[k])) for k in keys)


def sessions(*keys: str) -> Build:
    def build(events: Any) -> Any:
        timed = events.withColumn("part", F.expr("v % 2")).withWatermark("t", "5 minutes")
        return timed.groupBy(*keys, F.session_window("t", "1 minute")).agg(F.count("*"), F.max("v"))

    return build


def test_sessions_go_on_unless_they_would_overlap(spark: Any, tmp_path: Path) -> None:
    change = Change(spark, tmp_path / "moved", sessions("k", "part"), sessions("part", "k"), "append")
    change.migrate()
    output = change.output()
    assert output == change.expected()
    assert sum(map(len, output)) > 5
    change = Change(spark, tmp_path / "fewer", sessions("k", "part"), sessions("k"), "append")
    with pytest.raises(RowEncodingError, match="sessions of the old state would overlap"):
        change.migrate()


def steps_of(events: Any, *kinds: str) -> Any:
    """Return the events with operations of an `Interpreter`."""
    names = ", ".join(map(repr, ("set", "append", "put", *kinds)))
    op = f"element_at(array({names}), cast(v % {3 + len(kinds)} as int) + 1) as op"
    return events.selectExpr("k", "unix_seconds(t) as seq", "v as n", "v", op, "t")


def steps(processor: Interpreter) -> Build:
    def build(events: Any) -> Any:
        rows = steps_of(events, "timer")
        groups = rows.withWatermark("t", "1 minute").groupBy("k")
        run = groups.transformWithStateInPandas if processor.uses_pandas else groups.transformWithState
        return run(processor, OUTPUT, "update", "eventTime")

    return build


@since("4.1", "transformWithState of rows in Python")
@pytest.mark.spark
@pytest.mark.parametrize(
    "pandas", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["rows", "frames"]
)
def test_variables_are_renamed(spark: Any, tmp_path: Path, pandas: bool) -> None:
    """Lists, timers and their indexes are taken as they are, under their new names."""
    names = {"first": "one", "second": "many", "third": "named"}
    before = Interpreter("int", timers="event", pandas=pandas)
    after = Interpreter("int", timers="event", names=tuple(names))
    # More runs than the old query has batches: Spark describes the operator anew in each.
    change = Change(spark, tmp_path, steps(before), steps(after), "update", runs=3)
    migration = change.migrate(states={(0, new): old for new, old in names.items()})
    origins = {state.name: state.taken_from for state in migration.states}
    assert {new: origins[new] for new in names} == {new: (0, old) for new, old in names.items()}
    assert all(not state.columns for state in migration.states)
    output = change.output()
    assert output == change.expected()
    assert any("timer" in row for rows in output for row in rows)


@since("4.1", "transformWithState of rows in Python")
def test_variables_are_dropped_with_what_belongs_to_them(spark: Any, tmp_path: Path) -> None:
    before, after = Interpreter("int", ttl=DAY), Interpreter("int", ttl=DAY, names=("one", "lists", "named"))

    def build(processor: Interpreter) -> Build:
        return lambda events: (
            steps_of(events).groupBy("k").transformWithState(processor, OUTPUT, "update", "processingTime")
        )

    change = Change(spark, tmp_path, build(before), build(after), "update", confs=NO_EMPTY_BATCHES)
    with pytest.raises(OptionError, match=r"state '.*many' of operator 0 .* drop=\[\(0, 'many'\)\]"):
        change.migrate()
    with pytest.raises(OptionError, match=r"two states .* take 'one'"):
        change.migrate(states={(0, "named"): "one"}, drop=[(0, "many"), (0, "named")])
    migration = change.migrate(drop=[(0, "many"), (0, "named")])
    taken_names = {state.name for state in migration.states if state.taken_from}
    assert (
        taken_names == {name for name in taken_names if name.endswith("one") or name == "default"} > {"one"}
    )
    rows = [row for rows in change.output()[:1] for row in rows]
    assert rows
    assert any("one=" in row or "[" in row for row in rows)


@since("4.1", "transformWithState of rows in Python")
@pytest.mark.parametrize(
    "ttl", [pytest.param(None, marks=pytest.mark.soak, id=""), pytest.param(DAY, id="ttl")]
)
def test_values_of_variables_are_widened(spark: Any, tmp_path: Path, ttl: int | None) -> None:
    """Derived states of lists and of values that expire are computed with them."""

    def variables(kind: str) -> Build:
        def build(events: Any) -> Any:
            processor, times = Interpreter(kind, ttl=ttl), "processingTime" if ttl else "none"
            return steps_of(events).groupBy("k").transformWithState(processor, OUTPUT, "update", times)

        return build

    change = Change(spark, tmp_path, variables("int"), variables("bigint"), "update", confs=NO_EMPTY_BATCHES)
    migration = change.migrate()
    assert {state.name for state in migration.states if state.columns} == {"one", "many", "named"}
    assert change.output() == change.expected()


@since("4.1", "transformWithState of rows in Python")
def test_column_is_added_to_the_key_of_variables_and_timers(spark: Any, tmp_path: Path) -> None:
    def by(*keys: str) -> Build:
        def build(events: Any) -> Any:
            # Some timers are later than the history.
            rows = steps_of(events, "timer").selectExpr("* except (n)", "v * 20000 as n", "'a' as part")
            groups = rows.withWatermark("t", "1 minute").groupBy(*keys)
            processor = Interpreter("int", timers="event")
            return groups.transformWithState(processor, OUTPUT, "update", "eventTime")

        return build

    change = Change(spark, tmp_path, by("k"), by("part", "k"), "update")
    part = {"key.part": pa.scalar("a")}
    names = ("one", "many", "named", "$eventTimers_keyToTimestamp")
    with pytest.raises(OptionError, match=r"Timers_keyToTimestamp: key.part is not in the old key"):
        change.migrate(columns={(0, name): part for name in names[:3]})
    change.migrate(columns={(0, name): part for name in names})
    output = change.output()
    assert output == change.expected()
    assert any("timer" in row for rows in output for row in rows)
