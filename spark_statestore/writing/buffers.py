"""Buffers of Spark's aggregates in the value of a state, found by the names and types of its fields."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

_EITHER: Final = "avg, or sum and count"

# Values of the buffers before the first row.
_BEGINNINGS: Final[Mapping[str, tuple[Any, ...]]] = {
    "count": (0,),
    "sum": (None,),
    "sum with isEmpty": (0, True),
    "avg of decimals": (0, 0),
    "min": (None,),
    "max": (None,),
    "first with valueSet": (None, False),
    "last with valueSet": (None, False),
}


@dataclass(frozen=True, slots=True)
class Buffer:
    """The buffer of an aggregate: one or several fields.

    Attributes
    ----------
    kind
        The function, as far as the fields show it.
    positions
        Positions of the fields in the value.
    """

    kind: str
    positions: tuple[int, ...]

    @property
    def beginning(self) -> tuple[Any, ...] | None:
        """Value of each field before the first row; None if it is not known."""
        return _BEGINNINGS.get(self.kind)


def buffers_of(fields: Sequence[pa.Field], begin: int = 0) -> list[Buffer]:
    """Return the buffers in a value's fields from a position on; the fields have Spark's names."""
    found = []
    position = begin
    while position < len(fields):
        following = fields[position + 1].name if position + 1 < len(fields) else None
        kind, width = _kind(fields[position], following)
        found.append(Buffer(kind, tuple(range(position, position + width))))
        position += width
    return found


def _kind(field: pa.Field, following: str | None) -> tuple[str, int]:
    match field.name, following:
        case "sum", "isEmpty":
            return "sum with isEmpty", 2
        case "sum", "count" if pa.types.is_decimal(field.type):
            # A sum of decimals has isEmpty, or is a whole number.
            return "avg of decimals", 2
        case "sum", "count" if not pa.types.is_integer(field.type):
            return _EITHER, 2
        case "first" | "last", "valueSet":
            return f"{field.name} with valueSet", 2
    return field.name, 1


def matched_buffers(
    old: Sequence[Buffer], new: Sequence[Buffer]
) -> tuple[list[tuple[Buffer, Buffer]], list[Buffer], list[Buffer]]:
    """Return pairs of an old and a new buffer, the new ones that were added, and those that cannot be told.

    Buffers do not show the columns that they aggregate: those of a kind belong together, in their order, if
    there are as many in both. Where a sum and a count could be an average, no sum or count can be told unless
    nothing has changed.
    """
    kinds = [[buffer.kind for buffer in buffers] for buffers in (old, new)]
    if kinds[0] != kinds[1] and _EITHER in (*kinds[0], *kinds[1]):
        mixed = (_EITHER, "sum", "count")
        before, after = ([buffer for buffer in side if buffer.kind not in mixed] for side in (old, new))
        told = matched_buffers(before, after)
        return told[0], told[1], [*told[2], *(buffer for buffer in new if buffer.kind in mixed)]
    by_kind: dict[str, list[Buffer]] = defaultdict(list)
    for buffer in old:
        by_kind[buffer.kind].append(buffer)
    of_new: dict[str, list[Buffer]] = defaultdict(list)
    for buffer in new:
        of_new[buffer.kind].append(buffer)
    pairs: list[tuple[Buffer, Buffer]] = []
    added: list[Buffer] = []
    unclear = []
    for kind, buffers in of_new.items():
        before = by_kind.get(kind, [])
        if len(before) == len(buffers):
            pairs += zip(before, buffers, strict=True)
        elif not before and buffers[0].beginning is not None:
            added += buffers
        else:
            unclear += buffers
    return pairs, added, unclear
