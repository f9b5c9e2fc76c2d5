"""Gaps in a query's offset and commit log.

Spark adds entries at the end of its logs and purges them at the beginning, and has at most one batch begun
that is not committed. So a gap shows that something else removed entries, such as a rollback of a running
query.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from spark_statestore.query.query_checkpoint import COMMITS, OFFSETS, QueryCheckpoint

# The two logs cannot be listed atomically, and purges remove entries in any order: list again before
# reporting a gap.
_LOOKS: Final = 3
_PAUSE_SECONDS: Final = 0.5


def log_gaps(checkpoint: QueryCheckpoint, until: int | None = None) -> dict[str, list[int]]:
    """List the batches that are missing in each of the two logs, in order, up to the newest or `until`."""
    present: dict[str, set[int]] = {}
    for look in range(_LOOKS):
        if look:
            time.sleep(_PAUSE_SECONDS)
        commits, offsets = checkpoint.logged(COMMITS), checkpoint.logged(OFFSETS)
        gaps = missing_entries(offsets, commits, until)
        present = {log: gaps[log] & present.get(log, gaps[log]) for log in gaps}
        if not any(present.values()):
            break
    return {log: sorted(missing) for log, missing in present.items() if missing}


def missing_entries(
    offsets: Collection[int], commits: Collection[int], until: int | None = None
) -> dict[str, set[int]]:
    """Return the batches that are missing in each log."""
    newest = max((*offsets, *commits), default=0)
    last = newest if until is None else min(until, newest)
    # The newest batch in the offset log may be uncommitted.
    last_commit = max(max(commits, default=0), newest - 1)
    return {
        OFFSETS: set(range(min(offsets, default=0), last + 1)) - set(offsets) if offsets else set(),
        COMMITS: set(range(min(commits), min(last_commit, last) + 1)) - set(commits) if commits else set(),
    }
