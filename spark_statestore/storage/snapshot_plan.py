"""The plan of a store's next full snapshot or run is a pure function of the sizes of its streams.

The chain of a version is a base, which is a full snapshot, and runs and deltas on top of it; a run has the
net changes of several deltas. For states above `SMALL_STATE`, while uploads keep up with the batches:

* a load reads at most `MOST_ON_TOP` more than a fresh snapshot, and one delta;
* streams on top of the base are twice the interval and a number that grows with the logarithm of their bytes
  at most;
* every changed byte is written once in a delta, once in the runs of each level, and 1 / `MOST_ON_TOP` times
  in bases;
* a commit writes a full snapshot only if that costs no more than its changes, if the state is small, if Spark
  requests one, or if the chain has `HARD_LIMIT` intervals, whatever maintenance does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_statestore.storage.incremental_handle import IncrementalStateHandle

__all__ = [
    "NOTHING",
    "UNBOUNDED",
    "WHOLE",
    "SnapshotPlan",
    "full_up_to",
    "is_base_due",
    "plan_snapshots",
    "run_from",
]

NOTHING: Final = -1
"""A plan's `SnapshotPlan.upload` if nothing is due.

It is also a plan's `SnapshotPlan.full_up_to` if no state is small enough.
"""

WHOLE: Final = 0
"""A plan's `SnapshotPlan.upload` if a full snapshot is due."""

UNBOUNDED: Final = (1 << 63) - 1
"""A plan's `SnapshotPlan.full_up_to` for a state of any size."""

MOST_ON_TOP: Final = 0.25
"""Bytes that a load reads beyond those of a fresh snapshot, as a fraction of these."""

FAN_OUT: Final = 8
"""Number of runs of one size that are merged into one."""

EAGER_LIMIT: Final = 4
"""Intervals after which the base is written again because streams cannot be merged."""

HARD_LIMIT: Final = 8
"""Intervals after which a commit writes the snapshot itself."""

SMALL_STATE: Final = 64 << 10
"""State up to this many bytes is rewritten rather than extending a chain beyond the interval."""

_MEDIUM_STATE: Final = 256 << 10

MEDIUM_STATE_REMOTE: Final = 1 << 20
"""State up to this many bytes is written inside of a commit, on storage other than local files."""

# A short interval limits the deltas on top of the runs, not the runs.
_LEAST_INTERVAL: Final = 10


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """What a store does next with a version.

    Attributes
    ----------
    inline_up_to
        A snapshot that is due is a part of the next commit if the state has at most so many bytes in the JVM;
        of a larger one it is uploaded in the background. On remote storage the former saves two requests, one
        of them within a commit.
    full_up_to
        The next commit writes everything rather than its changes if the state has at most so many bytes,
        whatever the changes are.
    upload
        Version since which the changes are to be uploaded, as a run; `WHOLE` for a full snapshot, `NOTHING`
        if none is due.
    full_up_to_at_tick, upload_at_tick
        The same once Spark's maintenance calls.
    """

    inline_up_to: int
    full_up_to: int
    upload: int
    full_up_to_at_tick: int
    upload_at_tick: int


def plan_snapshots(
    handle: IncrementalStateHandle,
    rows: int,
    interval: int,
    *,
    known_since: int | None,
    background: bool,
    is_remote: bool,
) -> SnapshotPlan:
    """Return the plan for a version.

    Parameters
    ----------
    rows
        Rows of the version.
    interval
        Spark's ``minDeltasForSnapshot``.
    known_since
        Oldest version since which the JVM has all changes in memory, so that it can write runs of them.
    background
        Whether snapshots are uploaded in the background; not if state is inside of metadata.
    is_remote
        Whether storage is other than local files.
    """
    on_top = [entry.state.state_size for entry in handle.runs_and_deltas]
    base_bytes, base_rows = handle.base_size, handle.base_rows
    inline_up_to = MEDIUM_STATE_REMOTE if is_remote else _MEDIUM_STATE

    def full(tick: bool) -> int:
        return full_up_to(
            len(handle), interval, base_bytes, sum(on_top), inline_up_to, background=background, tick=tick
        )

    upload = upload_at_tick = NOTHING
    if background and len(handle):
        fresh_bytes = int(float(base_bytes) * rows / base_rows) if base_rows else 0
        if is_base_due(base_bytes, fresh_bytes, on_top, interval):
            upload = upload_at_tick = WHOLE
        elif known_since is not None:
            # The version that the changes of each stream apply to.
            before = [handle.base_version, *(entry.version for entry in handle.runs_and_deltas)]
            first = next((i for i in range(len(on_top)) if before[i] >= known_since), len(on_top))
            upload, upload_at_tick = (
                NOTHING if position is None else before[position]
                for position in (run_from(on_top, first, interval, tick=tick) for tick in (False, True))
            )
    return SnapshotPlan(inline_up_to, full(False), upload, full(True), upload_at_tick)


def full_up_to(
    chain_length: int,
    interval: int,
    base_bytes: int,
    on_top: int,
    inline_up_to: int,
    *,
    background: bool,
    tick: bool,
) -> int:
    """Return the largest state of which the next commit writes everything, see `SnapshotPlan`.

    Parameters
    ----------
    chain_length
        Streams in the version's chain.
    on_top
        Bytes of the runs and deltas on top of the base.
    tick
        Whether Spark's maintenance calls.
    """
    limit = HARD_LIMIT * (max(interval, _LEAST_INTERVAL) if background else interval)
    if chain_length == 0 or chain_length >= limit:
        return UNBOUNDED
    if chain_length <= interval:
        return NOTHING
    if not background:
        return UNBOUNDED
    is_due = tick or on_top > base_bytes or chain_length >= EAGER_LIMIT * interval
    return inline_up_to if is_due else SMALL_STATE


def is_base_due(base_bytes: int, fresh_bytes: int, on_top: Sequence[int], interval: int) -> bool:
    """Return True if the base is to be written again.

    Parameters
    ----------
    base_bytes
        Bytes of the base, as stored.
    fresh_bytes
        Estimate of those that a snapshot of the version would have.
    on_top
        Bytes of the runs and deltas on top of the base, oldest first.
    """
    size = sum(on_top)
    # The upload takes at least until the next commit, which adds a delta.
    soon = size + (on_top[-1] if on_top else 0)
    is_large = base_bytes + soon > (1 + MOST_ON_TOP) * fresh_bytes or size > base_bytes
    return (is_large and (size > SMALL_STATE or len(on_top) > interval)) or (
        len(on_top) >= EAGER_LIMIT * max(interval, _LEAST_INTERVAL)
    )


def run_from(on_top: Sequence[int], first: int, interval: int, *, tick: bool) -> int | None:
    """Return the position of the oldest stream that a run is to merge, with all newer ones.

    Return None if none is due.

    Parameters
    ----------
    on_top
        As in `is_base_due`.
    first
        The oldest stream whose changes the JVM has in memory.
    tick
        Whether Spark's maintenance calls; otherwise twice as many streams are waited for.
    """
    least = interval if tick else 2 * interval
    if len(on_top) - first <= least:
        return None
    # Merged with so many times its bytes, so that a byte is merged once for each level. Deltas of one size
    # make a run when they are more than the interval.
    times = min(FAN_OUT - 1, interval)
    position = None
    newer = 0
    for at in range(len(on_top) - 1, first - 1, -1):
        if len(on_top) - at > least and on_top[at] * times <= newer:
            position = at
        newer += on_top[at]
    return position
