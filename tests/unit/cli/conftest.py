"""Fixture with a query's checkpoint for commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.query.stored_query import StoredQuery


@pytest.fixture
def query(tmp_path: Path) -> StoredQuery:
    """Return a query of three batches: 100 words, then one in each partition, then one."""
    stored_query = StoredQuery(tmp_path / "checkpoint")
    stored_query.run(**{f"{'w' * (number % 7)}{number}": number for number in range(100)})
    stored_query.run(ann=1, carl=2)
    stored_query.run(ann=3)
    return stored_query


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Return the location of a copy."""
    return tmp_path / "target"
