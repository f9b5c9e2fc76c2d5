"""Directories of tests: files to compare before and after, and batches that a checkpoint retains."""

from __future__ import annotations

from pathlib import Path

import spark_statestore


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


def problem_of(checkpoint: Path | str, batch: int) -> str | None:
    """Return the first problem that `verify` finds in a batch, or why it cannot be verified."""
    try:
        verified = spark_statestore.verify(str(checkpoint), batch)
    except Exception as error:  # noqa: BLE001 - a batch that cannot be verified is a problem
        return str(error)
    return None if verified.ok else f"{len(verified.problems)} problems: {verified.problems[0].message}"
