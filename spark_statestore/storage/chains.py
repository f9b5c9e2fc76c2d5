"""Chains of streams: how a version's handle follows from its parent's, from snapshots and from runs."""

from __future__ import annotations

from spark_statestore.storage.incremental_handle import ChainEntry, IncrementalStateHandle
from spark_statestore.storage.operator_handles import OperatorStreamStateHandle


def start_chain(
    version: int, snapshot: OperatorStreamStateHandle | None, rows: int | None = None
) -> IncrementalStateHandle:
    """Return the handle of a version that is a full snapshot; `snapshot` is None if it has no rows."""
    entries = [] if snapshot is None else [ChainEntry(version, True, snapshot, rows=rows)]
    return IncrementalStateHandle(version, version, entries)


def run_of(since: int, version: int, changes: OperatorStreamStateHandle | None) -> IncrementalStateHandle:
    """Return the handle of a run, the net changes since an earlier version.

    `changes` is None if there are none.
    """
    entries = [] if changes is None else [ChainEntry(version, False, changes, since=since)]
    return IncrementalStateHandle(version, since, entries)


def extend_chain(
    parent: IncrementalStateHandle, version: int, changes: OperatorStreamStateHandle | None
) -> IncrementalStateHandle:
    """Return the handle of a version that is its parent and changes; `changes` is None if there are none."""
    entries = list(parent.entries)
    if changes is not None:
        entries.append(ChainEntry(version, False, changes))
    return IncrementalStateHandle(version, parent.base_version, entries)


def rebase_chain(chain: IncrementalStateHandle, base: IncrementalStateHandle) -> IncrementalStateHandle:
    """Return the handle of the same version with a full snapshot as its base, or with a run.

    The snapshot is from the version's past, and newer than the present base. A run replaces the streams whose
    changes it has; it must have all changes of each of them.

    Raises
    ------
    ValueError
        If the snapshot or run is not of the chain's past, or has a part of a stream's changes.
    """
    if not chain.base_version <= base.base_version <= base.version <= chain.version:
        raise ValueError(f"{base!r} is not in the past of {chain!r}")
    if _divides_a_run(base, chain):
        raise ValueError(f"{base!r} has a part of the changes of a run of {chain!r}")
    later = [entry for entry in chain if entry.version > base.version]
    if _is_full(base):
        return IncrementalStateHandle(chain.version, base.version, [*base, *later])
    older = [entry for entry in chain if entry.version <= base.base_version]
    return IncrementalStateHandle(chain.version, chain.base_version, [*older, *base, *later])


def is_usable(base: IncrementalStateHandle, chain: IncrementalStateHandle) -> bool:
    """Return True unless a chain was rebased meanwhile so that an upload does not fit any more.

    The upload is then too old for the chain, or overlaps with a run.
    """
    if _is_full(base):
        return base.version > chain.base_version and not _divides_a_run(base, chain)
    return base.base_version >= chain.base_version and not _divides_a_run(base, chain)


def _is_full(base: IncrementalStateHandle) -> bool:
    """Return True if an upload is a full snapshot rather than a run."""
    return base.base_version == base.version


def _divides_a_run(base: IncrementalStateHandle, chain: IncrementalStateHandle) -> bool:
    return any(
        entry.parent_version < end < entry.version
        for entry in chain.runs_and_deltas
        for end in (base.base_version, base.version)
    )
