"""Fixture with files in memory."""

from __future__ import annotations

import pytest

from spark_statestore.files import MemoryFileSystem


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()
