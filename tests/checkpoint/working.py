"""Work on storage that a test's own thread does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_statestore.checkpoint.files.work import Work, enter


@contextmanager
def working(work: Work) -> Iterator[Work]:
    """What this thread does within the context belongs to a work."""
    before = enter(work)
    try:
        yield work
    finally:
        enter(before)
