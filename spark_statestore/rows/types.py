"""Spark's data types, parsed from a schema's JSON, and their Arrow types."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import pyarrow as pa

from spark_statestore.errors import (
    CorruptCheckpointError,
    OptionError,
    UnsupportedFormatError,
    restore_from_backup,
)
from spark_statestore.formats.metadata import parse_json

# Decimals with at most this precision are stored as a long.
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
"""Arrow types of Spark's types without arguments and children."""

# Names of nested types, without those of structs.
_PARTS: Final = ("elementType", "keyType", "valueType", "sqlType")

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
        Name without arguments: ``long``, ``decimal``, ``struct``. Types with the same encoding share a name.
    arrow
        Arrow type of decoded values.
    children
        Types of the fields of a struct, of the elements of an array, of the keys and values of a map.
    positions
        Of a struct, position of each field in the row.
    width
        Of a struct, number of fields in the row.
    nullable
        Whether each child may be null. Decoding does not depend on it.
    """

    name: str
    arrow: pa.DataType
    children: tuple[SparkType, ...] = ()
    positions: tuple[int, ...] = ()
    width: int = 0
    nullable: tuple[bool, ...] = dataclasses.field(default=(), compare=False)

    def select(self, columns: Sequence[str]) -> SparkType:
        """Return a struct with some of its fields; ``a.b`` is the field b of the struct a."""
        names = [field.name for field in self.arrow] if self.name == "struct" else []
        inner: dict[str, list[str] | None] = {}
        for column in columns:
            if column in names:
                inner[column] = None
                continue
            around = [name for name in names if column.startswith(f"{name}.")]
            # Names may contain dots. If no split matches, raise the error of the first one.
            outer = next((name for name in around if self._has(name, column)), next(iter(around), None))
            if outer is None:
                raise OptionError(
                    f"there is no column {column!r}; there are {', '.join(map(repr, names)) or 'none'}. Use "
                    "one of those."
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
            nullable=tuple(self.nullable[position] for position, _ in chosen),
        )

    def _has(self, name: str, column: str) -> bool:
        return column.removeprefix(f"{name}.") in _paths(self.arrow.field(name).type)


def parse_schema(schema: str, columns: Sequence[str] | None = None) -> SparkType:
    """Parse a row's schema from Spark's JSON, with unique names: see `with_unique_names`.

    Of `columns`, the fields to keep, ``a.b`` is the field b of the struct a.
    """
    with _of_schema(schema):
        row = _parse(_renamed(_row(schema)))
    if columns is not None:
        row = row.select(columns)
    _require_known(row)
    return row


def with_unique_names(schema: str) -> str:
    """Return a row's schema with the names under which its fields are read.

    Spark lets a struct have several fields of one name, and names that differ in case alone; Arrow, pandas,
    DuckDB and JSON do not, or give the value of one field for both. In every struct, also in lists and maps,
    the first field of a name keeps it, and each later one gets a number from 2 on that makes it unique:
    ``count``, ``count_2``. A field that Spark calls ``count_2`` keeps that name. The names that
    `pyarrow.Table.flatten` makes of the fields of structs are unique too: a field ``a.b`` beside a struct
    ``a`` with a field ``b`` becomes ``a.b_2``.
    """
    with _of_schema(schema):
        return json.dumps(_renamed(_row(schema)), separators=(",", ":"), ensure_ascii=False)


@cache
def with_binary_strings(schema: str) -> str:
    """Return a row's schema in which strings are binary, which have the same bytes and the same hash.

    Rows are decoded and encoded by it without a change, also those with strings that are not UTF-8.
    """
    with _of_schema(schema):
        return json.dumps(_with_binary_strings(_row(schema)), separators=(",", ":"), ensure_ascii=False)


def _with_binary_strings(node: Any) -> Any:
    if isinstance(node, str):
        return "binary" if node == "string" else node
    parts = {part: _with_binary_strings(node[part]) for part in _PARTS if part in node}
    if node["type"] == "struct":
        parts["fields"] = [field | {"type": _with_binary_strings(field["type"])} for field in node["fields"]]
    return node | parts


@contextmanager
def _of_schema(schema: str) -> Iterator[None]:
    """Raise an error that names the schema if it turns out not to be one."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptCheckpointError(
            f"the schema {schema[:200]!r} is not one that Spark writes: {error!r}. The file with it is "
            "damaged. " + restore_from_backup()
        ) from error


def _row(schema: str) -> Any:
    node = parse_json(schema)
    if node["type"] != "struct":
        raise TypeError(f"it describes a {node['type']}, not a row")
    return node


def _renamed(node: Any) -> Any:
    """Return a type with unique names in all of its structs."""
    if isinstance(node, str):
        return node
    parts = {part: _renamed(node[part]) for part in _PARTS if part in node}
    if node["type"] == "struct":
        fields = [field | {"type": _renamed(field["type"])} for field in node["fields"]]
        parts["fields"] = [
            field | {"name": name} for field, name in zip(fields, _unique_names(fields), strict=True)
        ]
    return node | parts


def _unique_names(fields: Sequence[Any]) -> Iterator[str]:
    """Return a name for each field, so that paths differ also without regard to case."""
    original = {field["name"].casefold() for field in fields}
    used_paths: set[str] = set()
    # Next number per name, which keeps this linear for many fields of one name.
    numbers: dict[str, int] = {}
    for field in fields:
        inside = [path.casefold() for path in _paths(_parse(field["type"]).arrow)]
        name = field["name"]
        folded = name.casefold()
        paths = _below(folded, inside)
        while not paths.isdisjoint(used_paths) or (name != field["name"] and not paths.isdisjoint(original)):
            number = numbers[folded] = numbers.get(folded, 1) + 1
            name = f"{field['name']}_{number}"
            paths = _below(f"{folded}_{number}", inside)
        used_paths |= paths
        yield name


def _below(name: str, paths: Iterable[str]) -> set[str]:
    return {name, *(f"{name}.{path}" for path in paths)}


def _paths(kind: pa.DataType) -> Iterator[str]:
    """Return the fields of a struct and of nested structs, as ``a.b``; none for another type."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield field.name
            yield from (f"{field.name}.{path}" for path in _paths(field.type))


def _require_known(kind: SparkType) -> None:
    if not (kind.children or kind.name in KNOWN or kind.name in ("struct", "decimal")):
        raise UnsupportedFormatError(
            f"the state has a column of Spark's type {kind.name!r}, which this release cannot decode. Leave "
            "the column out (columns=...), or upgrade spark-statestore."
        )
    for child in kind.children:
        _require_known(child)


def _parse(node: Any) -> SparkType:
    if isinstance(node, str):
        return _parse_name(node)
    match node["type"]:
        case "struct":
            types = tuple(_parse(part["type"]) for part in node["fields"])
            fields = [(part["name"], child.arrow) for part, child in zip(node["fields"], types, strict=True)]
            nullable = tuple(bool(part.get("nullable", True)) for part in node["fields"])
            width = len(types)
            return SparkType("struct", pa.struct(fields), types, tuple(range(width)), width, nullable)
        case "array":
            element = _parse(node["elementType"])
            nullable = (bool(node.get("containsNull", True)),)
            return SparkType("array", pa.list_(element.arrow), (element,), nullable=nullable)
        case "map":
            key, value = _parse(node["keyType"]), _parse(node["valueType"])
            nullable = (False, bool(node.get("valueContainsNull", True)))
            return SparkType("map", pa.map_(key.arrow, value.arrow), (key, value), nullable=nullable)
        case "udt":
            return _parse(node.get("sqlType", "udt"))
    return _parse_name(node["type"])


def _parse_name(name: str) -> SparkType:
    if match := _DECIMAL.fullmatch(name):
        return SparkType("decimal", pa.decimal128(int(match[1]), int(match[2])))
    if match := _WITH_ARGUMENTS.fullmatch(name):
        plain = (match[1] or match[2]).lower()
        name = "string" if plain in ("char", "varchar") else plain
    name = _INTERVALS.get(name, name)
    # An unknown type fails only if its column is selected.
    return SparkType(name, KNOWN.get(name, pa.null()))
