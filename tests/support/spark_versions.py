"""Features of the installed Spark, and marks for tests that need a later one than the oldest supported."""

from __future__ import annotations

from typing import Final

import pytest

from tests.support.paths import SPARK_MINOR


def _order(minor: str) -> tuple[int, ...]:
    return tuple(map(int, minor.split(".")))


def is_since(minor: str) -> bool:
    """Return whether the installed Spark has this minor version, such as 4.2, or a later one."""
    return _order(SPARK_MINOR) >= _order(minor)


def since(minor: str, lacking: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test before a minor version, which is the first to have what it needs."""
    return pytest.mark.skipif(not is_since(minor), reason=f"Spark {SPARK_MINOR} has no {lacking}")


NEWEST_JOIN_FORMAT: Final = 4 if is_since("4.3") else 3 if is_since("4.1") else 2
"""Newest state format of stream-stream joins."""

NEWEST_READABLE_FORMAT: Final = 2 if is_since("4.1") else 1
"""Newest checkpoint format that the state data source reads."""
