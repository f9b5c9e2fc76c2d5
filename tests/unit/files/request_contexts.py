"""Context manager that runs a test's thread within a request context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_statestore.files.request_context import RequestContext, enter


@contextmanager
def within(context: RequestContext) -> Iterator[RequestContext]:
    """Run the calling thread within a request context."""
    before = enter(context)
    try:
        yield context
    finally:
        enter(before)
