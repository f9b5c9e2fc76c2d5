"""What strategies log, and what they are called."""

from __future__ import annotations

import logging
import re

import pytest

from spark_statestore.checkpoint.streams import MemCheckpointStreamFactory
from spark_statestore.state.operator import DefaultOperatorStateBackend, ListStateDescriptor
from spark_statestore.state.operator.serializers import BytesSerializer
from spark_statestore.state.operator.snapshot import DefaultOperatorStateBackendSnapshotStrategy
from spark_statestore.state.snapshot import CloseableRegistry


def test_a_strategy_is_shown_by_its_description() -> None:
    strategy = DefaultOperatorStateBackendSnapshotStrategy({}, {}, CloseableRegistry())
    assert str(strategy) == "SnapshotStrategy {DefaultOperatorStateBackend snapshot}"


def test_the_time_of_both_parts_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    backend = DefaultOperatorStateBackend()
    backend.get_list_state(ListStateDescriptor("a", BytesSerializer())).add(b"1")
    with caplog.at_level(logging.DEBUG, "spark_statestore"):
        future = backend.snapshot(1, 0, MemCheckpointStreamFactory(1000))
        assert [r.levelname for r in caplog.records] == ["DEBUG"]
        future.run()
    sync, done = caplog.messages
    start = r"DefaultOperatorStateBackend snapshot \(In-Memory Stream Factory\): the "
    end = r"synchronous part took \d+ ms in thread MainThread"
    assert re.fullmatch(start + end, sync)
    assert re.fullmatch(start + "a" + end, done)


def test_what_failed_is_not_logged_as_written(caplog: pytest.LogCaptureFixture) -> None:
    backend = DefaultOperatorStateBackend()
    backend.get_list_state(ListStateDescriptor("a", BytesSerializer())).add(b"1")
    with caplog.at_level(logging.DEBUG, "spark_statestore"):
        future = backend.snapshot(1, 0, MemCheckpointStreamFactory(1))
        future.run()
    assert future.exception() is not None
    assert not any("asynchronous" in message for message in caplog.messages)
