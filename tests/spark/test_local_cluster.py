"""Queries on separate executors: their state survives them, in memory and as commits that they hand over."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest

import spark_statestore
from spark_statestore.options import OPTION_PREFIX
from tests.spark.counting import Program, cluster_environment, is_gone, kill, wait_until
from tests.support.commands import interpreter
from tests.support.effort import EFFORT
from tests.support.slow import SlowStorage
from tests.support.spark_versions import is_since
from tests.support.trees import files_below

pytestmark = pytest.mark.slow

PLUGIN_LINE = f"spark.plugins={spark_statestore.PLUGIN_CLASS}"


def test_queries_are_exact_after_kills_of_executors_and_backends(built: Path, tmp_path: Path) -> None:
    slow = SlowStorage(tmp_path)
    checkpoint = tmp_path / "checkpoint"
    # Commits by batch have the kills in format v2.
    formats = [1, 2] if EFFORT > 1 else [1]
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    with Program(
        "local_cluster",
        slow.environment | cluster_environment(tmp_path),
        checkpoint=str(checkpoint),
        state=slow.url,
        python=slow.interpreter(),
        formats=formats,
        metrics=str(metrics),
    ) as program:
        assert program.next("workers") == [["spark_statestore.worker_daemon", is_since("4.1")]]
        for checkpoint_format in formats:
            check_memory(program, Path(f"{checkpoint}-{checkpoint_format}"))
        # One state is larger than a message may be.
        message = program.next("refused")
        assert "version 1 of operator 0, partition" in message
        assert "message of at most 1048576. Raise spark.rpc.message.maxSize" in message

        check_commits(program, checkpoint, slow)
        message = program.next("refused")
        assert "on a cluster checkpoint format v2" in message
        assert PLUGIN_LINE in message
        assert not list(tmp_path.glob("checkpoint-refused/commits/*"))
        program.next("stopped")
        program.end()
    checked = spark_statestore.verify(str(checkpoint), checkpoints_dir=f"file://{slow.directory}")
    assert checked.ok, checked
    check_metrics(metrics)


def check_metrics(directory: Path) -> None:
    """Check that executors export metrics to sinks of their own, without a UI."""
    commits = list(directory.rglob("*.StateStorePlugin.checkpointCommits.csv"))
    # The columns are the time and the count.
    assert max(int(file.read_text().splitlines()[-1].split(",")[1]) for file in commits) > 0
    memory = list(directory.rglob("*.StateStorePlugin.backendMemoryBytes.csv"))
    assert memory
    assert not any(".driver." in file.name for file in memory)


def check_memory(program: Program, checkpoint: Path) -> None:
    """Kill an executor and the backend of the other one; the driver holds the state of both."""
    (backend, executor), (other_backend, other_executor) = program.next("running")
    assert executor != other_executor
    kill(other_backend, executor)
    assert wait_until(lambda: is_gone(backend), 10)
    program.resume()
    assert program.next("result") > 1
    assert not [f for f in files_below(checkpoint / "state") if "chk-" in f or "shared" in f]


def check_commits(program: Program, checkpoint: Path, slow: SlowStorage) -> None:
    """Kill executors, at last all of them while the driver publishes what they have handed over."""
    (_, executor), (other_backend, _) = program.next("running")
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


def test_cluster_without_the_plugin_refuses_memory_and_logs_where_its_state_is(
    built: Path, tmp_path: Path
) -> None:
    """The interpreter of the query that is accepted is on executors only."""
    python = interpreter(tmp_path, "grep -qa CoarseGrainedExecutorBackend /proc/$PPID/cmdline || exit 1")
    # Workers of a local cluster write logs below Spark's home.
    home = tmp_path / "home"
    home.mkdir()
    for name in ("bin", "jars", "python"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    checkpoint = tmp_path / "checkpoint"
    arguments = {"checkpoint": str(checkpoint), "python": python}
    with Program("cluster_without_plugin", {"SPARK_HOME": str(home)}, **arguments) as program:
        assert PLUGIN_LINE in program.next("refused")
        check_refused(program.next("refused"))
        assert not (tmp_path / "checkpoint-planned").exists()
        # Its option was set after the driver's check: its first task is refused.
        check_refused(program.next("refused"))
        assert (tmp_path / "checkpoint-late").exists()
        assert not list(tmp_path.glob("checkpoint-late/commits/*"))
        assert "backend.checkpointsDir' cannot be used" in program.next("refused")
        program.next("counted")
        program.end()
    logs = [path.read_text() for path in (home / "work").glob("*/*/stderr")]
    assert len(logs) == 2
    where = f"storage filesystem, directory file:{checkpoint}/state, interpreter {python}"
    assert [log.count(f" INFO Backend: state store: {where}\n") for log in logs] == [1, 1]


def check_refused(message: str) -> None:
    assert PLUGIN_LINE in message
    assert 'spark_statestore.configure(builder, storage="memory")' in message
    assert "spark.master=local-cluster[2,1,1024]" in message
    assert "this applies to a single executor too" in message
    assert "checkpointsDir" in message


@pytest.mark.parametrize(
    ("options", "url", "shown"),
    [
        ({}, "s3://me:planted@bucket/x", "storage filesystem, directory s3://...@bucket/x"),
        ({}, "sftp://me:pl:anted@host:22/x@y", "storage filesystem, directory sftp://...@host:22/x@y"),
        ({}, "hdfs://host:8020/a@b", "storage filesystem, directory hdfs://host:8020/a@b"),
        ({"storage": "memory"}, "file:/a", "storage memory, directory none (state is on the driver)"),
    ],
)
def test_executor_log_redacts_passwords_of_urls(
    spark: Any, options: dict[str, str], url: str, shown: str
) -> None:
    settings = spark._jvm.PythonUtils.toScalaMap({OPTION_PREFIX + key: v for key, v in options.items()})
    parsed = spark._jvm.org.apache.spark.sql.statestore.provider.BackendOptions.parse(settings)
    assert parsed.destination(url) == shown


@pytest.mark.soak
def test_driver_refuses_commits_of_an_executor_with_another_jar(built: Path, tmp_path: Path) -> None:
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
