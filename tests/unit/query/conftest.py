"""Fixture for tools that sync the files they move."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync nothing: `tests/unit/savepoints/test_faults.py` takes power away, and these tests do not."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
