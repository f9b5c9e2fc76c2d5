"""Buffers of Spark's aggregates in the value of a state, found by the names and types of its fields."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

_EITHER: Final = "avg, or sum and count"

# Values of the buffers before the first row.
# Of other functions, the fields do not show which of them belong together.
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
    there are as many in both. If the functions are others than before, it cannot be told what belongs to a
    function of several unknown fields, nor to a sum, a count or an average of which one may be another.
    """
    if [buffer.kind for buffer in old] == [buffer.kind for buffer in new]:
        return list(zip(old, new, strict=True)), [], []
    by_kind: dict[str, list[Buffer]] = defaultdict(list)
    for buffer in old:
        by_kind[buffer.kind].append(buffer)
    of_new: dict[str, list[Buffer]] = defaultdict(list)
    for buffer in new:
        of_new[buffer.kind].append(buffer)
    pairs: list[tuple[Buffer, Buffer]] = []
    added: list[Buffer] = []
    unclear: list[Buffer] = []
    for kind, buffers in of_new.items():
        before = by_kind[kind]
        if buffers[0].beginning is None:
            unclear += buffers
        elif len(before) == len(buffers):
            pairs += zip(before, buffers, strict=True)
        elif not before:
            added += buffers
        else:
            unclear += buffers
    if _may_be_sums(by_kind, of_new):
        unclear += [after for _, after in pairs if after.kind in _SUMS]
        unclear += [buffer for buffer in added if buffer.kind in _SUMS]
        pairs = [pair for pair in pairs if pair[1].kind not in _SUMS]
        added = [buffer for buffer in added if buffer.kind not in _SUMS]
    return pairs, added, unclear


def _may_be_sums(old: Mapping[str, Sequence[Buffer]], new: Mapping[str, Sequence[Buffer]]) -> bool:
    """Return True if a new sum, count or average may be an old one in another form."""
    if old.get(_EITHER) or new.get(_EITHER):
        return True
    more = [len(new.get(kind, ())) - len(old.get(kind, ())) for kind in _SUMS]
    return min(more) < 0 < max(more)
