"""Rows decoded without Spark: every type, and the state of queries as Spark's data source reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from spark_statestore.rows import decode_rows, read_state
from tests.spark import events
from tests.spark.processors import DAY, OUTPUT, Interpreter
from tests.spark.processors_query import NO_EMPTY_BATCHES, SCHEMA, batches
from tests.spark.queries import JOIN_FORMAT, STATE_STORE, Query, configured
from tests.spark.test_state_data_source import busy_windows
from tests.support.effort import EFFORT
from tests.unit.rows import encoder

TYPES = {
    "void": "null",
    "boolean": "id % 2 = 0",
    "byte": "cast(id - 3 as byte)",
    "short": "cast(id * 1000 - 3000 as short)",
    "integer": "cast(-id * 100000 as int)",
    "long": "id * 10000000000",
    "float": "cast(if(id = 0, 'NaN', -id / 3) as float)",
    "double": "cast(if(id = 1, '-0.0', id / 7) as double)",
    "decimal": "cast(id / 3 as decimal(5, 2))",
    "large_decimal": "cast((3 - id) * 12345678901234567890.0123456789BD as decimal(38, 10))",
    "string": "repeat('é', cast(id as int))",
    "not_utf8": "cast(X'61FF62C3' as string)",
    "collated": "cast(id as string) || 'x' collate UTF8_LCASE",
    "binary": "cast(cast(id as string) as binary)",
    "date": "date_add(date'1969-12-28', cast(id as int))",
    "timestamp": "timestamp_micros(id * 1000003 - 5000000)",
    "timestamp_ntz": "cast(timestamp_micros(id * 1000003 - 5000000) as timestamp_ntz)",
    "time": "make_time(cast(id as int), 2, 3.000004)",
    "year_month": "make_ym_interval(cast(id as int), -3)",
    "day_time": "make_dt_interval(cast(id as int), 1, 2, 3.000004)",
    "calendar": "make_interval(1, cast(id as int), 0, 3, 4, 5, 6.000007)",
    "array": "array(id, null, -id)",
    "booleans": "array(true, null, id = 1)",
    "nested": "array(named_struct('a', id, 'b', array('x', null)), null)",
    "map": "map('a', id, cast(id as string), null)",
    "struct": "named_struct('a', id, 'b', named_struct('c', cast(id as string)))",
    "variant": """parse_json(concat('{"a":', id, '}'))""",
    "geometry": "st_geomfromwkb(X'0101000000000000000000F03F0000000000000040')",
    "geography": "st_geogfromwkb(X'0101000000000000000000F03F0000000000000040')",
}

# PySpark cannot show these two.
_MONTHS = "extract(year from {0}) * 12 + extract(month from {0})"
_MICROS = (
    "cast(extract(second from {0}) * 1000000 as long) "
    "+ (extract(hour from {0}) * 60 + extract(minute from {0})) * 60000000L"
)
SHOWN = {
    "year_month": f"cast({_MONTHS} as int)",
    "calendar": f"if({{0}} is null, null, array({_MONTHS}, extract(day from {{0}}), {_MICROS}))",
}


@pytest.fixture(scope="module")
def typed(spark: Any) -> Iterator[Any]:
    with configured(spark, {"spark.sql.timeType.enabled": "true"}):
        yield spark


def every_type() -> list[str]:
    return [f"if(id % 4 = 3, null, {expression}) as {name}" for name, expression in TYPES.items()]


def plain(value: Any) -> Any:
    """Return a value as both pyarrow and PySpark represent it."""
    if hasattr(value, "asDict"):
        return plain(value.asDict())
    match value:
        case pa.MonthDayNano(months=months, days=days, nanoseconds=nanos):
            return [months, days, nanos // 1000] if days or nanos else months
        case datetime(tzinfo=zone) if zone is not None:
            return value.astimezone().replace(tzinfo=None)
        case bytearray():
            return bytes(value)
        case dict():
            # PySpark returns the entries of a map in any order.
            return {plain(key): plain(value[key]) for key in sorted(value, key=str)}
        case [tuple(), *_] if not hasattr(value[0], "asDict"):
            return plain(dict(value))
        case list():
            return [plain(item) for item in value]
    if type(value).__name__ == "VariantVal":
        return {"metadata": bytes(value.metadata), "value": bytes(value.value)}
    if type(value).__name__ in ("Geometry", "Geography"):
        return {"srid": value.srid, "wkb": bytes(value.wkb)}
    return value


def unsafe_rows(frame: Any) -> pa.BinaryArray:
    """Return the rows of a frame, byte for byte."""
    rows = frame._jdf.queryExecution().executedPlan().executeCollect()
    return pa.array([bytes(row.getBytes()) for row in rows], pa.binary())


def shown(frame: Any, names: Iterable[str] = TYPES, prefix: str = "") -> list[Any]:
    """Return the rows of a frame of these types, as Spark shows them."""
    columns = [f"{SHOWN.get(name, '{0}').format(prefix + name)} as {name}" for name in names]
    return [plain(row) for row in frame.selectExpr(*columns).collect()]


def test_user_defined_type_is_decoded_as_its_storage_type(spark: Any) -> None:
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    frame = spark.range(2).select(array_to_vector(F.expr("array(double(id), -1.5d)")).alias("v"))
    vectors = decode_rows(unsafe_rows(frame), frame.schema.json()).field("v").to_pylist()
    assert vectors == [
        {"type": 1, "size": None, "indices": None, "values": [float(number), -1.5]} for number in range(2)
    ]


# Types that Spark accepts from Arrow unchanged.
FROM_ARROW = [
    column
    for column in encoder.SIMPLE
    if not column.node.startswith(("void", "time(", "interval", "variant", "geo", "varchar", "string "))
]


@pytest.mark.slow
@given(st.data())
@settings(max_examples=12 * EFFORT)
def test_decoded_generated_rows_equal_spark(spark: Any, data: st.DataObject) -> None:
    from pyspark.sql.types import StructType

    columns = data.draw(st.lists(encoder.columns_of(FROM_ARROW, least=1), min_size=1, max_size=5))
    row = encoder.struct_of(columns)
    values = pa.array(data.draw(st.lists(row.values, min_size=1, max_size=6)), row.arrow)
    frame = spark.createDataFrame(pa.Table.from_struct_array(values), StructType.fromJson(row.node))
    decoded = decode_rows(unsafe_rows(frame), frame.schema.json())
    assert Counter(map(repr, decoded.to_pylist())) == Counter(map(repr, values.to_pylist()))


# Types that may not be compared for equality.
NOT_KEYS = {"void", "collated", "calendar", "map", "variant", "geometry", "geography"}
KEYS = [name for name in TYPES if name not in NOT_KEYS]


def every_type_in_state(stream: Any) -> Any:
    """Keep state with keys of every possible type, and state with values of every type."""
    from pyspark.sql import functions as F

    typed = stream.selectExpr("id", *every_type())
    return typed.dropDuplicates(KEYS).join(stream.selectExpr("id % 5 as other"), F.expr("id = other"))


@pytest.mark.slow
def test_read_state_of_every_type_equals_the_data_source(typed: Any, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    # PySpark cannot show all of the output.
    query = Query(
        typed, tmp_path, every_type_in_state, "append", schema, collect=lambda batch: [batch.count()]
    )
    for start in (0, 4):
        query.feed([{"id": number} for number in range(start, start + 5)])
    query.run()
    operators = {row.operatorName: row.operatorId for row in operators_of(query)}
    for operator, store, row, names in (
        ("dedupe", "default", "key", KEYS),
        ("symmetricHashJoin", "left-keyWithIndexToValue", "value", list(TYPES)),
    ):
        options = {"operatorId": operators[operator], "storeName": store}
        frame = typed.read.format("statestore").options(**options).load(str(query.checkpoint))
        table = read_state(str(query.checkpoint), operators[operator], store)
        assert table.num_rows == 8
        values = [plain({name: value[row][name] for name in names}) for value in table.to_pylist()]
        assert Counter(map(repr, values)) == Counter(map(repr, shown(frame, names, f"{row}.")))


def operators_of(query: Query) -> list[Any]:
    return query.spark.read.format("state-metadata").load(str(query.checkpoint)).collect()


def assert_read_alike(query: Query, options: Mapping[str, Any], **selection: Any) -> None:
    """Check that the rows equal those of the data source, and that there are some."""
    frame = query.spark.read.format("statestore").options(**options).load(str(query.checkpoint))
    table = read_state(str(query.checkpoint), **selection)
    assert table.column_names == frame.columns
    expected = Counter(repr(plain(row)) for row in frame.collect())
    assert Counter(repr(plain(row)) for row in table.to_pylist()) == expected
    assert expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checkpoint_format", "join_format", "stores"),
    [
        (1, "2", ["keyToNumValues", "keyWithIndexToValue"]),
        (2, "4", ["keyWithTsToValues", "tsWithKey"]),
    ],
)
def test_read_state_of_joins_and_windows_equals_the_data_source(
    spark: Any, tmp_path: Path, checkpoint_format: int, join_format: str, stores: list[str]
) -> None:
    query = Query(
        spark,
        tmp_path,
        busy_windows,
        "append",
        events.SCHEMA,
        checkpoint_format=checkpoint_format,
        confs={JOIN_FORMAT: join_format},
    )
    query.feed(*events.batches(3, rows=12))
    query.run()
    with configured(spark, {STATE_STORE + "checkpointFormatVersion": str(checkpoint_format)}):
        for batch in (0, 2):
            assert_read_alike(query, {"operatorId": 0, "batchId": batch}, operator=0, batch=batch)
        for store in stores:
            for side in ("left", "right"):
                options = {"operatorId": 1, "storeName": f"{side}-{store}"}
                assert_read_alike(query, options, operator=1, store=f"{side}-{store}")


# Without TTL: test_repeated_names.py.
@pytest.mark.slow
def test_read_state_of_variables_equals_the_data_source(spark: Any, tmp_path: Path) -> None:
    def interpreted(stream: Any) -> Any:
        processor = Interpreter("string", ttl=DAY, timers="processing")
        return stream.groupBy("k").transformWithState(processor, OUTPUT, "Update", "ProcessingTime")

    query = Query(spark, tmp_path, interpreted, "update", SCHEMA, confs=NO_EMPTY_BATCHES)
    query.feed(*batches(2, timers=[DAY]))
    query.run()
    for variable in ("one", "many", "named"):
        assert_read_alike(query, {"stateVarName": variable}, column_family=variable)
    assert_read_alike(query, {"readRegisteredTimers": "true"}, column_family="$procTimers_keyToTimestamp")
