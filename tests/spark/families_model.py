"""Model of a store with column families: dicts, sorted the way that Spark documents.

An ordered family is sorted by the bytes that RocksDB compares, so that ties of the ordering columns have an
order too. Where the order of keys is undefined, only that of a group counts: the values of a key, or
the timestamps behind it. Floats and doubles are the integers of their bits.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass, field
from typing import Any

from tests.spark.harness import Family, Row

_WIDTHS = {"boolean": 1, "tinyint": 1, "smallint": 2, "int": 4, "bigint": 8, "float": 4, "double": 8}


def column_types(ddl: str) -> list[str]:
    return [column.split()[1] for column in ddl.split(",")] if ddl else []


def unsafe_row(values: Row, types: list[str]) -> bytes:
    """Return the bytes of Spark's UnsafeRow: null bits, a word per column, variable-length values."""
    bitset = 8 * ((len(types) + 63) // 64)
    nulls, words, tail = 0, b"", b""
    for i, (value, kind) in enumerate(zip(values, types, strict=True)):
        if value is None:
            nulls |= 1 << i
            words += bytes(8)
        elif kind in _WIDTHS:
            words += int(value).to_bytes(_WIDTHS[kind], "little", signed=True).ljust(8, b"\0")
        else:
            content = bytes.fromhex(value) if kind == "binary" else value.encode()
            words += struct.pack("<II", len(content), bitset + 8 * len(types) + len(tail))
            tail += content.ljust(-(-len(content) // 8) * 8, b"\0")
    return nulls.to_bytes(bitset, "little") + words + tail


def ordering_bytes(value: int | None, kind: str) -> bytes:
    """Encode an ordering column: negative numbers, then the others, then null."""
    width = _WIDTHS[kind]
    if value is None:
        return b"\2" + bytes(width)
    bits = value % (1 << 8 * width)
    if value < 0 and kind in ("float", "double"):
        # By its bits, the most negative number would be the largest.
        bits ^= (1 << 8 * width) - 1
    return (b"\0" if value < 0 else b"\1") + bits.to_bytes(width, "big")


def order_key(family: Family, key: Row) -> bytes:
    """Return the sort key of a key in an ordered family."""
    types = column_types(family.key)
    if family.spec[0] == "range":
        ordinals = family.spec[1:]
        rest = [i for i in range(len(types)) if i not in ordinals]
        leading = b"".join(ordering_bytes(key[i], types[i]) for i in ordinals)
        return leading + (unsafe_row(tuple(key[i] for i in rest), [types[i] for i in rest]) if rest else b"")
    timestamp = (key[-1] + 2**63).to_bytes(8, "big")
    row = unsafe_row(key[:-1], types[:-1])
    return timestamp + row if family.spec[0] == "timestampPrefix" else row + timestamp


def prefix_of(family: Family, key: Row) -> Row:
    """Return the columns that a prefix scan of the family uses."""
    if family.spec[0] == "range":
        return tuple(key[i] for i in family.spec[1:])
    return key[: family.spec[1]] if family.spec[0] == "prefix" else key[:-1]


@dataclass
class FamilyModel:
    """One column family: the values of every key, in the order they were appended."""

    family: Family
    lists: dict[Row, tuple[Row, ...]] = field(default_factory=dict)

    @property
    def scans_prefixes(self) -> bool:
        return self.family.spec[0] in ("prefix", "range", "timestampPostfix")

    @property
    def scans_ranges(self) -> bool:
        return self.family.spec[0] in ("range", "timestampPrefix", "timestampPostfix")

    def group(self, key: Row) -> Row:
        """Return the group of a key.

        Keys of a group are contiguous and ordered; the order of groups is undefined.
        """
        if self.family.spec[0] == "timestampPostfix":
            return key[:-1]
        return () if self.scans_ranges else key

    def keys(self) -> list[Row]:
        if not self.scans_ranges:
            return [*self.lists]
        return sorted(self.lists, key=lambda key: order_key(self.family, key))

    def put(self, key: Row, *values: Row) -> None:
        self.lists[key] = values

    def append(self, key: Row, *values: Row) -> None:
        self.lists[key] = (*self.lists.get(key, ()), *values)

    def remove(self, key: Row) -> None:
        self.lists.pop(key, None)

    def delete_range(self, begin: Row, end: Row) -> None:
        for key in self._between(begin, end):
            del self.lists[key]

    def get(self, key: Row) -> Row | None:
        return self.lists.get(key, (None,))[0]

    def scan(self, kind: str, *arguments: Any) -> list[Any]:
        """Return the expected rows of an iterator, see `harness.Store.open_iterator` for the kinds."""
        if kind == "values":
            return [*self.lists.get(*arguments, ())]
        if kind.startswith("range"):
            keys = self._between(*arguments)
        elif kind.startswith("prefix"):
            keys = [key for key in self.keys() if prefix_of(self.family, key) == arguments[0]]
        else:
            keys = self.keys()
        if kind.endswith("Values"):
            return [(key, value) for key in keys for value in self.lists[key]]
        return [(key, self.lists[key][0]) for key in keys]

    def gives(self, rows: list[tuple[Row, Row]], kind: str, *arguments: Any) -> bool:
        """Return whether these rows are a complete and valid result of such an iterator."""
        expected = self.scan(kind, *arguments)
        if kind == "values":
            return rows == expected
        groups = [group for group, _ in itertools.groupby(rows, key=lambda pair: self.group(pair[0]))]
        rows, expected = (
            sorted(pairs, key=lambda pair: repr(self.group(pair[0]))) for pairs in (rows, expected)
        )
        return len(groups) == len(set(groups)) and rows == expected

    def _between(self, start: Row | None, end: Row | None) -> list[Row]:
        low = None if start is None else order_key(self.family, start)
        high = None if end is None else order_key(self.family, end)
        return [
            key
            for key in self.keys()
            if (low is None or order_key(self.family, key) >= low)
            and (high is None or order_key(self.family, key) < high)
        ]


def families_of(*families: Family) -> dict[str, FamilyModel]:
    return {family.name: FamilyModel(family) for family in families}


def copy_of(content: dict[str, FamilyModel]) -> dict[str, FamilyModel]:
    return {name: FamilyModel(model.family, dict(model.lists)) for name, model in content.items()}
