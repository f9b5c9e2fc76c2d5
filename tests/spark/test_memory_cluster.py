"""State in memory on separate executors: the driver holds it, and it survives executor loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.counting import Program, cluster_environment, is_gone, kill, wait_until
from tests.support.trees import files_below

PLUGIN_LINE = "spark.plugins=org.apache.spark.sql.statestore.StateStorePlugin"

pytestmark = pytest.mark.slow


def cluster(directory: Path, **arguments: Any) -> Program:
    environment = cluster_environment(directory)
    return Program("memory_cluster", environment, checkpoint=str(directory / "checkpoint"), **arguments)


def test_memory_query_is_exact_after_kills_of_executor_and_backend(built: Path, tmp_path: Path) -> None:
    with cluster(tmp_path) as program:
        assert program.next("attached") is None
        for checkpoint_format in 1, 2:
            (backend, executor), (other_backend, other_executor) = program.next("running")
            assert executor != other_executor
            kill(other_backend, executor)
            assert wait_until(lambda pid=backend: is_gone(pid), 10)
            program.resume()
            assert program.next("result") > 1
            state = files_below(tmp_path / f"checkpoint-{checkpoint_format}" / "state")
            assert not [f for f in state if "chk-" in f or "shared" in f]

        # One state is larger than a message may be.
        message = program.next("failed")
        assert "version 1 of operator 0, partition" in message
        assert "message of at most 1048576. Raise spark.rpc.message.maxSize" in message
        program.next("stopped")
        program.end()


def test_missing_plugin_error_has_the_setting(built: Path, tmp_path: Path) -> None:
    with cluster(tmp_path, plain=True) as program:
        assert PLUGIN_LINE in program.next("attached")
        check_refused(program.next("failed"))
        assert not (tmp_path / "checkpoint-planned").exists()
        # Its option was set after the driver's check: its first task is refused.
        check_refused(program.next("failed"))
        assert (tmp_path / "checkpoint-late").exists()
        assert not list(tmp_path.glob("checkpoint-late/commits/*"))
        program.next("stopped")
        program.end()


def check_refused(message: str) -> None:
    assert PLUGIN_LINE in message
    assert 'spark_statestore.configure(builder, storage="memory")' in message
    assert "spark.master=local-cluster[2,1,1024]" in message
    assert "this applies to a single executor too" in message
    assert "checkpointsDir" in message
