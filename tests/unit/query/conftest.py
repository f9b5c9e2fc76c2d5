"""Fixtures that keep tools from waiting: for syncs of the files they move, and before gaps are reported."""

from __future__ import annotations

import os

import pytest

from spark_statestore.query import gaps


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """List logs again at once: nothing purges them meanwhile."""
    monkeypatch.setattr(gaps, "_PAUSE_SECONDS", 0)


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync nothing: `tests/unit/savepoints/test_faults.py` takes power away, and these tests do not."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
