"""Executors hand commits over with ``commit=batch`` on a cluster, and the driver publishes a batch's."""

from __future__ import annotations

import zipfile
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


@pytest.mark.soak
def test_driver_refuses_commits_of_an_executor_with_another_jar(built: Path, tmp_path: Path) -> None:
    """Commits that the driver cannot read fail the batch with the remedy.

    The next start runs the batch again.
    """
    checkpoint = tmp_path / "checkpoint"

    def run(jar: Path | None) -> str | None:
        directory = cluster_environment(tmp_path)
        with Program("other_jar", directory, checkpoint=str(checkpoint), jar=jar and str(jar)) as program:
            message: str | None = program.next("done")
            program.end()
            return message

    assert run(None) is None
    commits = sorted(checkpoint.glob("commits/[0-9]*"))
    message = run(with_other_messages(spark_statestore.jar_path(), tmp_path / "other.jar"))
    assert message is not None
    assert "is not committed: the driver did not answer this executor: " in message
    assert "operator 0, partition " in message
    assert "both have the same version of this package's jar" in message
    assert sorted(checkpoint.glob("commits/[0-9]*")) == commits
    assert run(None) is None
    assert len(list(checkpoint.glob("commits/[0-9]*"))) >= len(commits) + 1
    checked = spark_statestore.verify(str(checkpoint))
    assert checked.ok, checked


def with_other_messages(jar: Path, copy: Path) -> Path:
    """Copy a jar as a release has it in which a commit is handed over with another field."""
    message = "org/apache/spark/sql/statestore/driver/HandOver.class"
    with zipfile.ZipFile(jar) as original, zipfile.ZipFile(copy, "w") as changed:
        for name in original.namelist():
            data = original.read(name)
            if name == message:
                # The name of a field and its accessor, as the class file has it after its length.
                assert b"\0\3run" in data
                data = data.replace(b"\0\3run", b"\0\3ran")
            changed.writestr(name, data)
    return copy
