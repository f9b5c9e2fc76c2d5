"""Directories of tests: files to compare before and after, and batches that a checkpoint retains."""

from __future__ import annotations

from pathlib import Path


def files_below(directory: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a directory, by relative path."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def retained_batches(checkpoint: Path, retained: int) -> list[int]:
    """Return the committed batches that Spark may return to, of a stopped query.

    `retained` is the query's ``minBatchesToRetain``. Spark removes the oldest offsets before their commits,
    and a kill in between leaves those commits. Every other commit counts, also one whose offsets are lost.
    """
    offsets, commits = (
        sorted(int(entry.name) for entry in (checkpoint / log).glob("[0-9]*"))
        for log in ("offsets", "commits")
    )
    oldest = offsets[0] if offsets else 0
    return [batch for batch in commits if batch >= max(oldest, commits[-1] - retained)]
