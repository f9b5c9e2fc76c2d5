"""Generated batches of rows with keys of many types, and optionally with event times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from itertools import chain
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa

from tests.spark import events
from tests.spark.queries import Rows

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def decimals(precision: int, places: int) -> st.SearchStrategy[Any]:
    most = 10**precision - 1
    # Python's default context would round to 28 digits, and the largest numbers to one digit too many.
    return st.integers(-most, most).map(lambda n: Decimal(n).scaleb(-places, Context(prec=precision)))


TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.sampled_from([0.0, -0.0, float("nan")]) | st.floats(width=32)),
    (pa.float64(), st.sampled_from([0.0, -0.0, float("nan")]) | st.floats()),
    (pa.string(), text),
    (pa.binary(), st.binary(max_size=20)),
    (pa.date32(), st.dates(date(1901, 1, 1), date(2999, 1, 1))),
    (
        pa.timestamp("us", tz="UTC"),
        # Pandas, used by some operators, has no later ones.
        st.datetimes(datetime(1971, 1, 1), datetime(2262, 1, 1), timezones=st.just(UTC)),
    ),
    (pa.decimal128(9, 2), decimals(9, 2)),
    (pa.decimal128(38, 18), decimals(38, 18)),
    (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.none() | st.integers(0, 9), "b": st.none() | text}),
    ),
    (pa.list_(pa.string()), st.lists(st.none() | text, max_size=3)),
    (
        pa.struct([("a", pa.list_(pa.struct([("b", pa.float64())])))]),
        st.fixed_dictionaries(
            {
                "a": st.none()
                | st.lists(st.none() | st.fixed_dictionaries({"b": st.none() | st.floats()}), max_size=2)
            }
        ),
    ),
]


# Too long to be printed; Hypothesis prints the seed.
@dataclass(repr=False)
class Input:
    schema: pa.Schema
    parts: list[list[Rows]]
    checkpoint_format: int


@st.composite
def inputs(draw: st.DrawFn, *, timed: bool = False) -> Input:
    """Generate batches with few values of each key column; some rows are late or repeated."""
    columns = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3))
    names = [f"k{number}" for number in range(len(columns))]
    values = {
        name: st.sampled_from([None, *draw(st.lists(column[1], min_size=1, max_size=4))])
        for name, column in zip(names, columns, strict=True)
    }
    row = st.fixed_dictionaries({**values, "v": st.none() | st.integers(-(2**31), 2**31)})
    batch = st.lists(row, min_size=1, max_size=30)
    # The query is stopped and started between the parts.
    parts = [[draw(batch), draw(batch)], [draw(batch)]]
    fields = [pa.field(name, column[0]) for name, column in zip(names, columns, strict=True)]
    fields.append(pa.field("v", pa.int64()))
    if timed:
        fields.append(pa.field("ts", pa.timestamp("us", tz="UTC")))
        for number, rows in enumerate(chain.from_iterable(parts)):
            # A quarter of an hour from batch to batch, and up to half an hour of delay.
            for at in rows:
                seconds = draw(st.integers(-1800, 900))
                at["ts"] = events.START + timedelta(seconds=900 * number + seconds)
            rows += draw(st.lists(st.sampled_from(rows), max_size=5))
    return Input(pa.schema(fields), parts, draw(st.sampled_from([1, 2])))
