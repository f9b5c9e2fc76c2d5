"""Fixtures of a query's checkpoint, and such that keep tools from waiting."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_statestore.query import gaps
from tests.unit.query.stored_query import StoredQuery


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """List logs again at once: nothing purges them meanwhile."""
    monkeypatch.setattr(gaps, "_PAUSE_SECONDS", 0)


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync nothing: `tests/unit/savepoints/test_faults.py` takes power away, and these tests do not."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def query(tmp_path: Path) -> StoredQuery:
    """Four batches, each of which changes the same row."""
    stored_query = StoredQuery(tmp_path / "checkpoint")
    for number in range(4):
        stored_query.run(ann=number)
    return stored_query
