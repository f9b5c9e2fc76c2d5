"""transformWithState by generated keys and values of many types, against Spark's RocksDB store."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import Phase, given, note, settings

from tests.spark.inputs import TYPES, Input
from tests.spark.processors import OUTPUT, Interpreter
from tests.spark.processors_query import CHANGES, ROCKS, ProcessorQuery, life_of
from tests.spark.queries import OURS
from tests.support.effort import EFFORT

# PySpark 4.3 cannot read the schema of a grouping key that has an array in it, on any store.
KEY_TYPES = [(type_, values) for type_, values in TYPES if "list" not in str(type_)]


@st.composite
def inputs(draw: st.DrawFn) -> Input:
    """Generate two batches: some keys of a few types, and values that have a column of each type."""
    chosen = draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=2))
    columns = {f"k{number}": column for number, column in enumerate(chosen)}
    columns |= {f"v{number}": column for number, column in enumerate(TYPES)}
    row = {
        name: st.sampled_from([None, *draw(st.lists(values, min_size=1, max_size=3))])
        for name, (_, values) in columns.items()
    }
    row |= {"op": st.sampled_from(CHANGES), "n": st.integers(0, 7)}
    parts = []
    for _ in range(2):
        rows = draw(st.lists(st.fixed_dictionaries(row), min_size=15, max_size=30))
        parts.append([[columns_of_row | {"seq": seq} for seq, columns_of_row in enumerate(rows)]])
    fields = [pa.field(name, type_) for name, (type_, _) in columns.items()]
    fields += [("op", pa.string()), ("n", pa.int64()), ("seq", pa.int64())]
    return Input(pa.schema(fields), parts, draw(st.sampled_from([1, 2])))


def interpreted(stream: Any, run: int) -> Any:
    from pyspark.sql import functions as F

    keys = [name for name in stream.columns if name[0] == "k"]
    values = F.struct(*(name for name in stream.columns if name[0] == "v"))
    rows = stream.select(*keys, "op", "n", "seq", F.when(F.col("n") > 0, values).alias("v"))
    value = rows.schema["v"].dataType.simpleString()
    return rows.groupBy(*keys).transformWithState(Interpreter(value), OUTPUT, "update", "none")


@pytest.mark.soak
def test_transform_with_state_of_every_type_equals_rocksdb(
    spark: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    @settings(max_examples=2 * EFFORT, phases=[Phase.generate], database=None)
    @given(inputs())
    def compare(generated: Input) -> None:
        note(str(generated.schema))

        def live(provider: str, checkpoint_format: int) -> Any:
            query = ProcessorQuery(
                spark,
                tmp_path_factory.mktemp("generated"),
                interpreted,
                "update",
                generated.schema,
                provider=provider,
                checkpoint_format=checkpoint_format,
            )
            return life_of(query, generated.parts)

        assert live(OURS, generated.checkpoint_format) == live(ROCKS, 1)

    compare()
