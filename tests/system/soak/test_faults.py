"""Killed applications with many queries, and stores that move, lose no committed batch."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest

from tests.system.soak.kills import kill_repeatedly
from tests.system.soak.recording import events_of

pytestmark = [pytest.mark.soak, pytest.mark.timeout(14_400)]


def test_sixty_queries_keep_their_committed_batches_through_fifty_kills(built: Path) -> None:
    seed = int(time.time())
    print(f"seed {seed}")
    # Sockets below it need a short path.
    with tempfile.TemporaryDirectory(prefix="sst-") as directory:
        result = kill_repeatedly(Path(directory), kills=50, queries=60, seed=seed)
    assert result.problems == []


def test_stores_that_move_between_executors_keep_retained_and_held_versions(built: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sst-") as directory:
        events = dict(events_of("moves", {"directory": directory, "moves": 200}))
    assert events["problems"] == []
    assert events["moved"] == 200
