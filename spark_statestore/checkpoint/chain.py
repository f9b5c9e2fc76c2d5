"""Which streams form a version: pure decisions."""

from __future__ import annotations

from spark_statestore.state.handles.incremental import ChainEntry, IncrementalStateHandle
from spark_statestore.state.handles.operator import OperatorStreamStateHandle

__all__ = ["extend", "rebase", "start"]


def start(version: int, snapshot: OperatorStreamStateHandle | None) -> IncrementalStateHandle:
    """A version that is a full snapshot; None for one without rows."""
    entries = [] if snapshot is None else [ChainEntry(version, True, snapshot)]
    return IncrementalStateHandle(version, version, entries)


def extend(
    parent: IncrementalStateHandle, version: int, changes: OperatorStreamStateHandle | None
) -> IncrementalStateHandle:
    """A version that is its parent and some changes; None for one without changes."""
    entries = list(parent.entries)
    if changes is not None:
        entries.append(ChainEntry(version, False, changes))
    return IncrementalStateHandle(version, parent.base_version, entries)


def rebase(chain: IncrementalStateHandle, base: IncrementalStateHandle) -> IncrementalStateHandle:
    """The same version, starting from a newer full snapshot of one of the versions in its past.

    Raises
    ------
    ValueError
        If the snapshot is not of the chain's past.
    """
    if not chain.base_version <= base.version <= chain.version:
        raise ValueError(f"a snapshot of version {base.version} is not in the past of {chain!r}")
    entries = list(base.entries) + [entry for entry in chain.entries if entry.version > base.version]
    return IncrementalStateHandle(chain.version, base.version, entries)
