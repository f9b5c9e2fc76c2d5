"""State with repeated field names is read as by Spark's data source: of rows, structs and variables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_statestore import diff_state, read_state
from spark_statestore.cli.output import plain
from tests.spark import events
from tests.spark.queries import Query
from tests.unit.cli.commands import node
from tests.unit.rows.test_repeated_names import alike, assert_read, ordered, structs

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([events.SCHEMA.field(name) for name in ("id", "k")])


def twice_k(stream: Any) -> Any:
    """Return the stream with a second column of the name k: the columns a.k and b.k."""
    from pyspark.sql import functions as F

    rests = stream.sparkSession.range(3).selectExpr("id as rest", "id * 100 as k")
    # An average over nullable values has a count of its own.
    value = F.expr("if(id % 4 = 0, null, id) as v")
    return stream.select("*", value).alias("a").join(rests.alias("b"), F.expr("a.id % 3 = b.rest"))


def aggregation(stream: Any) -> Any:
    from pyspark.sql import functions as F

    return twice_k(stream).groupBy("a.k", "b.k").agg(F.count("*"), F.avg("v"))


def join(stream: Any) -> Any:
    from pyspark.sql import functions as F

    rows = twice_k(stream).select("a.k", "b.k", "id", F.expr("array(named_struct('n', id, 'N', a.k)) as s"))
    return rows.join(stream.select(F.col("id").alias("other")), F.expr("id = other"))


def state_variables(stream: Any) -> Any:
    from pyspark.sql import Row
    from pyspark.sql import functions as F
    from pyspark.sql.streaming import StatefulProcessor

    # Spark's own encoding of them refuses two fields of one name, except in different case.
    schema = "n bigint, N bigint"

    class Processor(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.single = handle.getValueState("one", schema)
            self.many = handle.getListState("many", schema)
            self.named = handle.getMapState("named", schema, schema)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            count = len(list(rows))
            self.single.update((count, -count))
            self.many.appendValue((count, -count))
            self.named.updateValue((count, -count), (key[0], 0))
            yield Row(rows=count)

    keyed = stream.groupBy(F.expr("id % 3 as k"), F.expr("id % 2 as K"))
    return keyed.transformWithState(Processor(), "rows bigint", "Update", "None")


CASES = [
    (aggregation, "update", [{}]),
    (join, "append", [{"store": "left-keyWithIndexToValue"}]),
    (state_variables, "update", [{"column_family": name} for name in ("one", "many", "named")]),
]


@pytest.mark.parametrize(
    ("build", "mode", "column_families"), CASES, ids=lambda part: getattr(part, "__name__", "")
)
def test_state_with_duplicate_column_names_equals_the_data_source(
    spark: Any,
    tmp_path: Path,
    build: Callable[[Any], Any],
    mode: str,
    column_families: list[dict[str, str]],
) -> None:
    # The output names are repeated too.
    query = Query(spark, tmp_path, build, mode, SCHEMA, collect=lambda batch: [batch.count()])
    query.feed(*([{n: row[n] for n in SCHEMA.names} for row in part] for part in events.batches(2, rows=12)))
    query.run()
    url = str(query.checkpoint)
    for selection in column_families:
        options = {SPARKS_OPTIONS[name]: value for name, value in selection.items()}
        frame = spark.read.format("statestore").options(**options).load(url).drop("partition_id")
        names = [part.names for part in sparks_structs(frame.schema)]
        assert any(map(alike, names)), f"no name is repeated: {names}"
        expected = [list(row) for row in frame.collect()]
        assert expected
        assert_read(url, expected, **selection)
        newest = int(query.commits[-1].name)
        changes = diff_state(url, 0, newest, **selection)
        assert not any(alike(part.names) for kind in changes.schema.types for part in structs(kind))
        assert changes.num_rows
        family = ["--column-family", selection["column_family"]] if "column_family" in selection else []
        place = ["--store", selection.get("store", "default"), *family]
        printed = node("diff", url, 0, newest, *place)["rows"]
        assert printed == json.loads(json.dumps(plain(changes.to_pylist())))
        if family in ([], ["--column-family", "one"]):
            added = [row for row in changes.to_pylist() if row["change"] != "removed"]
            state = read_state(url, **selection).to_pylist()
            remaining = [row for row in state if any(row["key"] == change["key"] for change in added)]
            assert ordered((r["key"], r["after"]) for r in added) == ordered(
                (r["key"], r["value"]) for r in remaining
            )


SPARKS_OPTIONS = {"store": "storeName", "column_family": "stateVarName"}


def sparks_structs(kind: Any) -> Iterator[Any]:
    """Yield all structs in a type of PySpark's."""
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, StructType):
        yield kind
        for field in kind.fields:
            yield from sparks_structs(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from sparks_structs(kind.elementType)
