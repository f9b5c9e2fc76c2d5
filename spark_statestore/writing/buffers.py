"""Buffers of Spark's aggregates in the value of a state, found by the names and types of its fields."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

_EITHER: Final = "avg, or sum and count"

# Values of the buffers before the first row. Those of other functions are unknown.
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


# Kinds of which one may be another, of numbers of another type.
_SUMS: Final = (_EITHER, "sum", "sum with isEmpty", "avg of decimals", "count")


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
    buffers = []
    position = begin
    while position < len(fields):
        following = fields[position + 1].name if position + 1 < len(fields) else None
        kind, width = _kind(fields[position], following)
        buffers.append(Buffer(kind, tuple(range(position, position + width))))
        position += width
    return buffers


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
    """Return pairs of an old and a new buffer, new ones that were added, and those of unknown origin.

    Buffers do not show the columns that they aggregate: those of a kind belong together, in their order, if
    there are as many in both. If the functions are others than before, the origin of a function of several
    unknown fields is unknown, as is that of a sum, a count or an average of which one may be another.
    """
    if [buffer.kind for buffer in old] == [buffer.kind for buffer in new]:
        return list(zip(old, new, strict=True)), [], []
    before, after = _by_kind(old), _by_kind(new)
    unknown = _SUMS if _may_be_sums(before, after) else ()
    pairs: list[tuple[Buffer, Buffer]] = []
    added: list[Buffer] = []
    unclear: list[Buffer] = []
    for kind, buffers in after.items():
        origins = before[kind]
        if kind in unknown or buffers[0].beginning is None:
            unclear += buffers
        elif len(origins) == len(buffers):
            pairs += zip(origins, buffers, strict=True)
        elif origins:
            unclear += buffers
        else:
            added += buffers
    return pairs, added, unclear


def _by_kind(buffers: Sequence[Buffer]) -> dict[str, list[Buffer]]:
    kinds: dict[str, list[Buffer]] = defaultdict(list)
    for buffer in buffers:
        kinds[buffer.kind].append(buffer)
    return kinds


def _may_be_sums(old: Mapping[str, Sequence[Buffer]], new: Mapping[str, Sequence[Buffer]]) -> bool:
    """Return True if a new sum, count or average may be an old one in another form."""
    if old.get(_EITHER) or new.get(_EITHER):
        return True
    more = [len(new.get(kind, ())) - len(old.get(kind, ())) for kind in _SUMS]
    return min(more) < 0 < max(more)
