"""Queries that go on from written state of generated rows, with keys and values of every type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_statestore import read_state
from tests.spark import events
from tests.spark.processors import OUTPUT, Interpreter
from tests.spark.queries import JOIN_FORMAT, Query, side_by_side
from tests.spark.test_encoded_rows import FIXED, Generator, Values, array_of, map_of, same, struct_of
from tests.spark.test_rows import unsafe_rows
from tests.spark.test_write_derived_state import VARIABLES, Copies, content_of, where
from tests.support.spark_versions import NEWEST_JOIN_FORMAT

# Each type is in test_encoded_rows.py, each operator in test_write_state.py and test_write_derived_state.py.
pytestmark = pytest.mark.soak

Columns = Mapping[str, tuple[Any, str]]
"""By name, the type of a column of the input, and what the query makes of it in SQL."""

_FILED = [
    "boolean",
    *(node for node in FIXED if "interval" not in node),
    *("decimal(1,0)", "decimal(18,3)", "decimal(19,0)", "decimal(38,18)", "string", "binary"),
]
KEYS: Columns = {
    **{f"plain{number}": (node, "{0}") for number, node in enumerate(_FILED)},
    "months": ("integer", "{0} * interval '1' month"),
    "lasting": ("long", "{0} * interval '0.000001' second"),
    "arrays": (array_of(array_of("string")), "{0}"),
    "bits": (array_of("boolean"), "{0}"),
    "structs": (array_of(struct_of("decimal(38,18)", struct_of("float", array_of("short")))), "{0}"),
    "pairs": (struct_of("string", struct_of("decimal(20,2)", "double")), "{0}"),
    "empty": ("boolean", "if({0} is null, null, struct())"),
    "clock": ("long", "time'00:00' + pmod({0}, 86400000000) * interval '0.000001' second"),
}
_POINT = "X'0101000000000000000000F03F0000000000000040'"

# None of these types is one of grouping columns: write_state refuses maps in keys, and Spark all others.
VALUES: Columns = KEYS | {
    "map": (map_of("string", map_of("integer", struct_of("decimal(38,18)", "binary"))), "{0}"),
    "void": ("boolean", "null"),
    "collated": ("string", "{0} collate UTF8_LCASE"),
    # In place of null Spark leaves bytes of earlier rows.
    "calendar": ("integer", "make_interval(0, coalesce({0} % 1000, 0), 0, 3, 0, 0, coalesce({0}, 0) / 1000)"),
    "variant": ("string", "if({0} is null, null, parse_json(to_json(struct({0} as s))))"),
    "geometry": ("boolean", f"if({{0}}, st_geomfromwkb({_POINT}), null)"),
    "geography": ("boolean", f"if({{0}}, st_geogfromwkb({_POINT}), null)"),
}


def without(columns: Columns, *names: str) -> Columns:
    return {name: column for name, column in columns.items() if name not in names}


EVERY = (KEYS, VALUES)
# PySpark does not parse the schemas of arrays in keys and in the state of groups; pandas has no months.
IN_PANDAS = (without(KEYS, "months", "arrays", "bits", "structs"),) * 2
# Spark derives Avro schemas from those of variables; Avro has no intervals and times.
IN_VARIABLES = (without(IN_PANDAS[0], "lasting", "clock"), without(KEYS, "months", "lasting", "clock"))


class InputGenerator(Generator):
    """Generator of values that input files have; if `is_dated`, with times that pandas has, too."""

    def __init__(self, seed: str, *, is_dated: bool) -> None:
        super().__init__(seed)
        self._is_dated = is_dated

    def values(self, node: Any, count: int, *, nullable: bool = True) -> Values:
        values = super().values(node, count, nullable=nullable)
        if node == "string":
            return same(pc.replace_substring_regex(values.encoded, "[a-f]", "é€🙂\0"))
        if self._is_dated and node in ("date", "timestamp", "timestamp_ntz"):
            number = pa.int32() if node == "date" else pa.int64()
            return same(
                pc.divide(values.encoded.cast(number), pa.scalar(100_000, number)).cast(values.encoded.type)
            )
        return values

    def table(self, columns: Columns, prefix: str, rows: int, *, nullable: bool = True) -> pa.Table:
        return pa.table(
            {
                prefix + name: self.values(node, rows, nullable=nullable).encoded
                for name, (node, _) in columns.items()
            }
        )

    def batch(self, pools: Sequence[pa.Table], number: int, rows: int = 30) -> pa.Table:
        """Return rows of some keys with some values; a quarter of an hour from batch to batch, some late."""
        seconds = 900 * number + self._random.integers(-1800, 900, rows)
        start = int(events.START.timestamp())
        at = pa.array((start + seconds) * 1_000_000).cast(pa.timestamp("us", tz="UTC"))
        chosen = [pool.take(pa.array(self._random.integers(0, len(pool), rows))) for pool in pools]
        columns = {"n": pa.array(np.arange(rows)), "at": at}
        columns |= {name: pool[name] for pool in chosen for name in pool.column_names}
        return pa.table(columns)


def typed(stream: Any, keys: Columns = KEYS, values: Columns = VALUES) -> Any:
    """Return a stream of keys such as k_months, values such as v_months, numbers and times."""
    return stream.selectExpr(
        "n",
        "at",
        *(f"{sql.format('k_' + name)} as k_{name}" for name, (_, sql) in keys.items()),
        *(f"{sql.format('v_' + name)} as v_{name}" for name, (_, sql) in values.items()),
    ).withWatermark("at", "20 minutes")


def keys_of(stream: Any) -> list[str]:
    return [name for name in stream.columns if name.startswith("k_")]


def every_value() -> str:
    return f"struct({', '.join(f'v_{name}' for name in VALUES)})"


def aggregated(events: Any) -> Any:
    """Aggregate in buffers of every type, and in those of fixed size alone, which Spark updates in place."""
    from pyspark.sql import functions as F

    stream = typed(events)
    decimals = [f"v_plain{_FILED.index(node)}" for node in _FILED if node.startswith("decimal")]
    fixed = [f"v_plain{number}" for number, node in enumerate(_FILED) if node in FIXED] + ["v_lasting"]
    in_place = [
        "count(*)",
        "stddev(n)",
        "first(v_calendar)",
        *(f"{function}({name})" for name in decimals for function in ("try_sum", "try_avg", "max")),
        *(f"{function}({name})" for name in fixed for function in ("first", "max")),
    ]
    at_all = [
        *(f"first(v_{name})" for name in VALUES),
        f"collect_list({every_value()})",
        "max_by(v_structs, n)",
        "approx_count_distinct(n)",
    ]
    return side_by_side(
        {
            name: stream.groupBy(time, *keys_of(stream)).agg(*(F.expr(sql) for sql in aggregates))
            for name, time, aggregates in (
                ("windows", F.window("at", "10 minutes"), in_place),
                ("sessions", F.session_window("at", "3 minutes"), at_all),
            )
        }
    )


def distinct(events: Any) -> Any:
    stream = typed(events)
    keys = keys_of(stream)
    return side_by_side(
        {
            "ever": stream.dropDuplicates(keys),
            "within": stream.dropDuplicatesWithinWatermark(keys),
        }
    )


def joined(events: Any) -> Any:
    from pyspark.sql import functions as F

    stream = typed(events).withColumn("v_nested", F.expr(f"array(null, {every_value()})"))
    left, right = (
        stream.where(f"n % 2 = {rest}").selectExpr(*(f"{name} as {side}_{name}" for name in stream.columns))
        for rest, side in enumerate(("left", "right"))
    )
    equal = " and ".join(f"left_{name} = right_{name}" for name in keys_of(stream))
    near = "right_at between left_at - interval 20 minutes and left_at + interval 20 minutes"
    both = left.join(right, F.expr(f"{equal} and {near}"), "left_outer")
    # Null without a match.
    return both.withColumn("right_v_calendar", F.col("right_v_calendar").cast("string"))


def plain(value: Any) -> Any:
    """Return a value of pandas as one of Python, which Spark's types accept."""
    match value:
        case dict():
            return {name: plain(part) for name, part in value.items()}
        case np.generic():
            return value.item()
    return None if type(value).__name__ in ("NaTType", "NAType") else value


def in_pandas(events: Any) -> Any:
    stream = typed(events, *IN_PANDAS)
    schema = stream.select(*(f"v_{name}" for name in IN_PANDAS[1])).schema
    names = schema.names

    def keep(key: tuple[Any, ...], frames: Iterator[Any], state: Any) -> Iterator[Any]:
        import pandas as pd

        before = state.get if state.exists else None
        row = pd.concat(frames).sort_values("n").to_dict("records")[-1]
        state.update(tuple(plain(row[name]) for name in names))
        yield pd.DataFrame({"told": [repr((key, before))]})

    return stream.groupBy(*keys_of(stream)).applyInPandasWithState(
        keep, "told string", schema, "update", "NoTimeout"
    )


def processed(events: Any) -> Any:
    stream = typed(events, *IN_VARIABLES)
    values = ", ".join(f"v_{name}" for name in IN_VARIABLES[1])
    op = "element_at(array('append', 'set', 'extend', 'put', 'put'), cast(n % 5 as int) + 1) as op"
    rows = stream.selectExpr(*keys_of(stream), "n as seq", "n", f"struct({values}) as v", op)
    processor = Interpreter(rows.schema["v"].dataType.simpleString())
    return rows.groupBy(*keys_of(stream)).transformWithState(processor, OUTPUT, "update", "none")


@dataclass(frozen=True)
class Case:
    """A query, and the states of its operators."""

    build: Callable[..., Any]
    operators: int = 1
    states: Sequence[str] = ("default",)
    mode: str = "append"
    join_format: int = 2
    columns: Sequence[Columns] = EVERY


def case_of_join(form: int) -> Case:
    kind = "keyWithTsToValues" if form == 4 else "keyWithIndexToValue"
    return Case(joined, states=[f"left-{kind}", f"right-{kind}"], join_format=form)


CASES = {
    "aggregation": Case(aggregated, operators=2),
    "dropDuplicates": Case(distinct, operators=2),
    "join": case_of_join(2),
    "join, newest format": case_of_join(NEWEST_JOIN_FORMAT),
    "applyInPandasWithState": Case(in_pandas, mode="update", columns=IN_PANDAS),
    "transformWithState": Case(processed, states=VARIABLES, mode="update", columns=IN_VARIABLES),
}


@pytest.mark.parametrize("form", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_generated_state_goes_on_as_if_untouched(spark: Any, tmp_path: Path, name: str, form: int) -> None:
    case = CASES[name]
    keys, values = case.columns
    generator = InputGenerator(name, is_dated=case.columns is not EVERY)
    # Keys of joins have no nulls.
    parts = [generator.table(keys, "k_", 6, nullable=nullable) for nullable in (False, True)]
    pools = [pa.concat_tables(parts), generator.table(values, "v_", 200)]
    batches = [generator.batch(pools, number) for number in range(4)]
    query = Query(
        spark,
        tmp_path / "query",
        case.build,
        case.mode,
        batches[0].schema,
        checkpoint_format=form,
        confs={JOIN_FORMAT: str(case.join_format), "spark.sql.timeType.enabled": "true"},
        collect=lambda batch: unsafe_rows(batch).to_pylist(),
    )
    query.feed(*batches[:2])
    query.run()

    def contents(path: Any) -> list[Any]:
        return [content_of(path, operator) for operator in range(case.operators)]

    before = contents(query.checkpoint)
    copies = Copies(tmp_path, query.checkpoint)
    for operator in range(case.operators):
        rows = {state: read_state(str(query.checkpoint), operator, **where(state)) for state in case.states}
        for state, table in rows.items():
            copies.write(state, table.slice(0, 0), "replace", operator)
        assert not content_of(copies.path, operator)
        for state, table in rows.items():
            assert table.num_rows > 3
            copies.write(state, table, "replace", operator)
    assert contents(copies.path) == before

    query.feed(*batches[2:])
    source, untouched = query.checkpoint, query.run()
    assert any(rows for _, rows in untouched)
    query.checkpoint = Path(copies.path)
    assert query.run() == untouched
    assert contents(copies.path) == contents(source)
