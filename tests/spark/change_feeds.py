"""The net change of each key, from a change feed that has every write, as Spark's own stores return it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

Change = tuple[int, str, Any, Any]
"""Batch, change type, key and value."""

Changes = list[tuple[str, Any, Any]]
"""Changes of one key: change type, key and value."""


class KeyChange:
    """The net change of one key, derived from every write to it in a batch.

    Parameters
    ----------
    before
        Its values before the batch.
    """

    def __init__(self, before: list[Any]) -> None:
        self.before = before
        self.values = list(before)
        self._how = "kept" if before else "removed"

    def apply(self, kind: str, value: Any) -> None:
        if kind == "delete":
            self.values, self._how = [], "removed"
        elif kind == "append":
            self._how = "merged" if self._how == "removed" else self._how
            self.values.append(value)
        elif self.values != [value]:
            # A put of the value that the key has is no change.
            self.values, self._how = [value], "put"

    def changes(self, key: Any, *, full: bool) -> Changes:
        """Return the change; that of a commit which wrote a full snapshot is the difference of the values."""
        extends = bool(self.before) and self.values[: len(self.before)] == self.before
        if self._how == "kept" or (full and extends):
            return [("append", key, added) for added in self.values[len(self.before) :]]
        first: Changes = [("delete", key, None)] if self.before and self._how != "put" else []
        kinds = ["append" if self._how == "merged" else "update"] + ["append"] * len(self.values)
        return first + [(kind, key, added) for kind, added in zip(kinds, self.values, strict=False)]


def net_changes(feed: list[Change], *, full: Collection[int] = ()) -> dict[int, dict[Any, Changes]]:
    """Return the net changes of each batch and key; the commits of batches in `full` wrote snapshots."""
    state: dict[Any, list[Any]] = {}
    by_batch: dict[int, dict[Any, Changes]] = {}
    for batch in sorted({change[0] for change in feed}):
        touched: dict[Any, KeyChange] = {}
        for number, kind, key, value in feed:
            if number == batch:
                touched.setdefault(key, KeyChange(state.get(key, []))).apply(kind, value)
        state |= {key: change.values for key, change in touched.items()}
        changed = {key: change.changes(key, full=batch in full) for key, change in touched.items()}
        by_batch[batch] = {key: changes for key, changes in changed.items() if changes}
    return {batch: changed for batch, changed in by_batch.items() if changed}


def by_key(feed: list[Change]) -> dict[int, dict[Any, Changes]]:
    """Return the changes of each batch and key."""
    by_batch: dict[int, dict[Any, Changes]] = {}
    for batch, kind, key, content in feed:
        value = None if kind == "delete" else content
        by_batch.setdefault(batch, {}).setdefault(key, []).append((kind, key, value))
    return by_batch


def require_net_changes(feed: list[Change], every: list[Change]) -> None:
    """Require a feed to have another one's net changes, whichever of its commits wrote snapshots."""
    delta, full = net_changes(every), net_changes(every, full={change[0] for change in every})
    actual = by_key(feed)
    for batch in actual.keys() | delta.keys():
        changes, deltas, differences = (by_batch.get(batch, {}) for by_batch in (actual, delta, full))
        for key in changes.keys() | deltas.keys():
            # The commits of a batch differ by partition.
            assert changes.get(key) in (deltas.get(key), differences.get(key)), (batch, key)
