"""With ``commit=batch`` on a cluster executors hand their commits over, and the driver publishes those of a batch."""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_statestore
from tests.spark.counting import Program, cluster_environment, kill, wait_until
from tests.support.slow import SlowStorage

pytestmark = pytest.mark.slow


def test_commits_on_a_cluster_are_one_file_and_survive_their_executors(built: Path, tmp_path: Path) -> None:
    slow = SlowStorage(tmp_path)
    checkpoint = tmp_path / "checkpoint"
    environment = slow.environment | cluster_environment(tmp_path)
    with Program(
        "commits_on_a_cluster",
        environment,
        checkpoint=str(checkpoint),
        state=slow.url,
        python=slow.interpreter(),
    ) as program:
        (_, executor), (other_backend, other_executor) = program.next("running")
        assert executor != other_executor
        kill(other_backend, executor)
        program.resume()

        executors = [pid for _, pid in program.next("running")]
        # The first versions have files of their own, and are discarded; executors report what they discard.
        assert wait_until(lambda: not list(slow.directory.glob("*/0/*/chk-*/_metadata")), 30)
        assert wait_until(lambda: 2 <= len(list(slow.directory.glob("*/_merged/*"))) <= 8, 30)
        with slow.hanging("write", "/_merged/") as hang:
            hang.wait()
            # All tasks of the batch have ended, and the driver has what they handed over.
            committed = {int(path.name) for path in checkpoint.glob("commits/[0-9]*")}
            planned = {int(path.name) for path in checkpoint.glob("offsets/[0-9]*")}
            assert planned - committed == {max(planned)}
            kill(*executors)
        program.resume()
        assert program.next("restarted") > max(planned)

        message = program.next("refused")
        assert "on a cluster checkpoint format v2" in message
        assert f"spark.plugins={spark_statestore.PLUGIN_CLASS}" in message
        assert not list(tmp_path.glob("checkpoint-1/commits/*"))
        program.next("stopped")
        program.end()
    checked = spark_statestore.verify(str(checkpoint), checkpoints_dir=f"file://{slow.directory}")
    assert checked.ok, checked
