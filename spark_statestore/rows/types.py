"""Spark's data types as they are in the JSON of a schema, and the Arrow type that each is decoded to."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from spark_statestore.errors import CorruptCheckpointError, OptionError, UnsupportedFormatError

__all__ = ["KNOWN", "LONG_DIGITS", "SparkType", "parse_schema"]

# What fits into the digits of a long is stored as one.
LONG_DIGITS: Final = 18

_INTERVALS: Final = {
    **dict.fromkeys(("interval year", "interval month", "interval year to month"), "year-month interval"),
    **dict.fromkeys(
        (
            *(f"interval {unit}" for unit in ("day", "hour", "minute", "second")),
            *(f"interval day to {unit}" for unit in ("hour", "minute", "second")),
            *(f"interval hour to {unit}" for unit in ("minute", "second")),
            "interval minute to second",
        ),
        "day-time interval",
    ),
}

KNOWN: Final = {
    "void": pa.null(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("ns"),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "interval": pa.month_day_nano_interval(),
    "year-month interval": pa.month_day_nano_interval(),
    "day-time interval": pa.duration("us"),
    "variant": pa.struct([("value", pa.binary()), ("metadata", pa.binary())]),
    "geometry": pa.struct([("srid", pa.int32()), ("wkb", pa.binary())]),
    "geography": pa.struct([("srid", pa.int32()), ("wkb", pa.binary())]),
}
"""What the types without arguments and parts are decoded to."""

# Strings have a length or a collation, times a precision, shapes a reference system: the bytes are the same.
_WITH_ARGUMENTS: Final = re.compile(
    r"(char|varchar|time|geometry|geography)\(.*\)|(string) collate .+", re.IGNORECASE
)
_DECIMAL: Final = re.compile(r"decimal\((\d+), ?(-?\d+)\)")


@dataclass(frozen=True, slots=True)
class SparkType:
    """A data type of Spark.

    Attributes
    ----------
    name
        Which one, without arguments: ``long``, ``decimal``, ``struct``. Types that are stored alike
        share a name.
    arrow
        What it is decoded to.
    children
        Types of the fields of a struct, of the elements of an array, of the keys and values of a map.
    positions
        Of a struct, where each of its fields lies in the row.
    width
        Of a struct, how many fields the row has.
    """

    name: str
    arrow: pa.DataType
    children: tuple[SparkType, ...] = ()
    positions: tuple[int, ...] = ()
    width: int = 0

    def select(self, columns: Sequence[str]) -> SparkType:
        """A struct of some of its fields; ``a.b`` is the field b of the struct a.

        Raises
        ------
        OptionError
            If there is no such field.
        """
        names = [field.name for field in self.arrow] if self.name == "struct" else []
        inner: dict[str, list[str] | None] = {}
        for column in columns:
            if column in names:
                inner[column] = None
                continue
            outer = next((name for name in names if column.startswith(f"{name}.")), None)
            if outer is None:
                raise OptionError(
                    f"there is no column {column!r}; there are {', '.join(map(repr, names)) or 'none'}. Name one of those."
                )
            fields = inner.setdefault(outer, [])
            if fields is not None:
                fields.append(column[len(outer) + 1 :])
        chosen = [
            (position, self.children[position] if fields is None else self.children[position].select(fields))
            for outer, fields in inner.items()
            for position, name in enumerate(names)
            if name == outer
        ]
        return replace(
            self,
            arrow=pa.struct([(names[position], child.arrow) for position, child in chosen]),
            children=tuple(child for _, child in chosen),
            positions=tuple(self.positions[position] for position, _ in chosen),
        )


def parse_schema(schema: str, columns: Sequence[str] | None = None) -> SparkType:
    """The type of a row, of a schema as Spark's JSON.

    Parameters
    ----------
    columns
        The fields to keep, by default all; ``a.b`` is the field b of the struct a.

    Raises
    ------
    CorruptCheckpointError
        If it is no schema.
    OptionError
        If there is no such field.
    UnsupportedFormatError
        If it has a type that this release does not know.
    """
    try:
        node = json.loads(schema)
        if node["type"] != "struct":
            raise TypeError(f"it describes a {node['type']}, not a row")
        row = _parse(node)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptCheckpointError(
            f"the schema {schema[:200]!r} is not one that Spark writes: {error!r}. What names it is damaged; copy it back "
            "from a backup, or go on from an earlier batch."
        ) from error
    if columns is not None:
        row = row.select(columns)
    _require_known(row)
    return row


def _require_known(kind: SparkType) -> None:
    if not (kind.children or kind.name in KNOWN or kind.name in ("struct", "decimal")):
        raise UnsupportedFormatError(
            f"the state has a column of Spark's type {kind.name!r}, which this release cannot decode. Leave the column out "
            "(columns=...), or upgrade spark-statestore."
        )
    for child in kind.children:
        _require_known(child)


def _parse(node: Any) -> SparkType:
    if isinstance(node, str):
        return _parse_name(node)
    match node["type"]:
        case "struct":
            types = tuple(_parse(field["type"]) for field in node["fields"])
            fields = [
                (field["name"], child.arrow) for field, child in zip(node["fields"], types, strict=True)
            ]
            return SparkType("struct", pa.struct(fields), types, tuple(range(len(types))), len(types))
        case "array":
            element = _parse(node["elementType"])
            return SparkType("array", pa.list_(element.arrow), (element,))
        case "map":
            key, value = _parse(node["keyType"]), _parse(node["valueType"])
            return SparkType("map", pa.map_(key.arrow, value.arrow), (key, value))
        case "udt":
            return _parse(node["sqlType"])
    return _parse_name(node["type"])


def _parse_name(name: str) -> SparkType:
    if found := _DECIMAL.fullmatch(name):
        return SparkType("decimal", pa.decimal128(int(found[1]), int(found[2])))
    if found := _WITH_ARGUMENTS.fullmatch(name):
        plain = (found[1] or found[2]).lower()
        name = "string" if plain in ("char", "varchar") else plain
    name = _INTERVALS.get(name, name)
    # What is not known may be in a column that nobody asks for.
    return SparkType(name, KNOWN.get(name, pa.null()))
