"""A StatefulProcessor whose values change their schema between runs.

It is a module because Spark's Python workers import it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

NARROW = (
    StructType()
    .add("n", "integer")
    .add("v", "string")
    .add("inner", StructType().add("a", "integer").add("b", "string"))
    .add("items", ArrayType(StructType().add("i", "integer")))
    .add("entries", MapType(StringType(), StructType().add("x", "float")))
)
"""The schema of the first run."""

LONGER = StructType([*NARROW.fields, StructType().add("extra", "double").fields[0]])
"""With a column more, so that a run can return to the former one."""

WIDE = (
    StructType()
    .add("extra", "double")
    .add("n", "long")
    .add("v", "string")
    .add("inner", StructType().add("a", "long").add("b", "string").add("c", "double"))
    .add("items", ArrayType(StructType().add("i", "long").add("j", "string")))
    .add("entries", MapType(StringType(), StructType().add("x", "double")))
)
"""With a column more, and wider numbers; nested ones too."""

SHORT = (
    StructType()
    .add("inner", StructType().add("c", "double").add("a", "long"))
    .add("w", "string")
    .add("n", "long")
)
"""With columns less, in another order, and one that is renamed."""


class Evolving(StatefulProcessor):
    """Executes the `op` of each row on its state, and outputs the state before and afterwards.

    Parameters
    ----------
    schema
        Schema of all values.
    ttl
        TTL of values in milliseconds.
    """

    def __init__(self, schema: StructType, ttl: int | None = None) -> None:
        self._schema = schema
        self._ttl = ttl

    def init(self, handle: Any) -> None:
        self.single = handle.getValueState("one", self._schema, self._ttl)
        self.many = handle.getListState("many", self._schema, self._ttl)
        self.named = handle.getMapState("named", "name string", self._schema, self._ttl)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        before = self._content()
        for row in sorted(rows, key=lambda row: row.seq):
            value = tuple(self._field_value(field.name, row) for field in self._schema)
            if row.op == "set":
                self.single.update(value)
            elif row.op == "append":
                self.many.appendValue(value)
            elif row.op == "put":
                self.named.updateValue((row.v,), value)
            elif row.op == "fail_once" and not Path(row.v).exists():
                Path(row.v).touch()
                raise ValueError("this processor fails once")
        yield Row(k=repr(key), event="rows", content=repr((before, self._content())))

    def _field_value(self, name: str, row: Any) -> Any:
        has = {field.name: field.dataType for field in self._schema}
        return (
            {
                "n": row.n,
                "v": row.v,
                "w": row.v,
                "extra": row.n / 2,
                "inner": {"a": row.n, "b": row.v, "c": 0.5},
                "items": [{"i": row.n, "j": row.v}, None],
                "entries": {"x": {"x": 0.5}},
            }[name]
            if name in has
            else None
        )

    def _content(self) -> Any:
        entries = sorted((repr(name), repr(value)) for name, value in self.named.iterator())
        return self.single.get(), list(self.many.get()), entries
