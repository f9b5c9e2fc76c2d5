"""The example with Kafka runs unchanged, and resumes."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.paths import ROOT
from tests.support.services.kafka import Broker

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("built")]

VISITS = [
    '{"user":"ann","start":"2025-01-01T09:00:00.000Z","end":"2025-01-01T10:15:00.000Z","clicks":3}',
    '{"user":"bob","start":"2025-01-01T09:10:00.000Z","end":"2025-01-01T09:40:00.000Z","clicks":1}',
    '{"user":"bob","start":"2025-01-01T10:30:00.000Z","end":"2025-01-01T11:00:00.000Z","clicks":1}',
]


def test_example_writes_each_visit_once(broker: Broker, jars: str, tmp_path: Path) -> None:
    name = uuid.uuid4().hex
    topics = [f"clicks-{name}", f"visits-{name}"]
    # The second run's clicks are late.
    for _ in range(2):
        command = [
            *(sys.executable, ROOT / "examples" / "kafka_sessions.py", broker.servers, *topics),
            *("--checkpoint", tmp_path / "checkpoint", "--jars", jars, "--sample"),
        ]
        result = run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
        assert result.stdout.splitlines() == VISITS
