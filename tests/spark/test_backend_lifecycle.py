"""The backend process: killed in the middle of a query, and gone when its session is gone."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from spark_statestore.options import OPTION_PREFIX
from tests.spark.counting import (
    Program,
    backends_of,
    finish,
    is_gone,
    jvm_of,
    metric,
    run_to,
    socket_of,
    start_counting,
    wait_for_batch,
    wait_until,
)


@pytest.fixture
def scratch(built: Path) -> Iterator[Path]:
    """A directory whose name is short enough for sockets below it, for all that a program leaves."""
    directory = Path(tempfile.mkdtemp(prefix="life-"))
    yield directory
    shutil.rmtree(directory)


def counting(scratch: Path, name: str, java: str = "", **arguments: Any) -> Program:
    """The counting program, with all that it may leave behind below `scratch`."""
    temporary = scratch / "tmp"
    temporary.mkdir(exist_ok=True)
    confs = {"spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={temporary} {java}"}
    return Program(
        "count", {"TMPDIR": str(temporary)}, checkpoint=str(scratch / name), confs=confs, **arguments
    )


def leftovers(scratch: Path) -> list[str]:
    return [p.name for p in (scratch / "tmp").iterdir() if p.name.startswith(("spark-statestore", "sst-"))]


def only_backend(jvm: int) -> psutil.Process:
    assert wait_until(lambda: len(backends_of(jvm)) == 1 and socket_of(backends_of(jvm)[0]).exists(), 20)
    return backends_of(jvm)[0]


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["filesystem", "memory"])
@pytest.mark.parametrize("checkpoint_format", [1, 2], ids=["v1", "v2"])
def test_a_query_survives_its_backend_being_killed(
    spark: Any, tmp_path: Path, checkpoint_format: int, storage: str
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", checkpoint_format)
    session.conf.set(OPTION_PREFIX + "storage", storage)
    chance = random.Random(7)
    kills = 4
    query = start_counting(session, tmp_path)
    batch = 1
    for number in range(kills):
        wait_for_batch(query, batch)
        backend = only_backend(jvm_of(spark))
        if number % 2:
            # Frozen, it takes requests and answers none, so it dies with commits under way.
            backend.suspend()
            time.sleep(1.0)
            assert query.lastProgress.batchId <= batch + 20
        else:
            time.sleep(chance.uniform(0.0, 0.3))
        backend.kill()
        batch = query.lastProgress.batchId + 2
    finish(session, query, batch)
    assert metric(query, "backendRestarts") == kills
    # What was stored meanwhile is whole as well.
    run_to(session, tmp_path, query.lastProgress.batchId + 2)


@pytest.mark.slow
def test_a_query_survives_its_next_backend_being_killed_before_it_is_ready(
    spark: Any, tmp_path: Path
) -> None:
    session = spark.newSession()
    jvm = jvm_of(spark)
    query = start_counting(session, tmp_path)
    wait_for_batch(query, 1)
    first = only_backend(jvm)
    first.kill()
    assert wait_until(lambda: [p for p in backends_of(jvm) if p.pid != first.pid], 20)
    (second,) = backends_of(jvm)
    assert not socket_of(second).exists()
    second.kill()
    finish(session, query, query.lastProgress.batchId + 2)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["jvm", "python"])
def test_a_killed_driver_takes_its_backend_along(scratch: Path, victim: str) -> None:
    with counting(scratch, "a", hold=True) as program:
        running = program.next("running")
        (backend,) = running["backends"]
        assert not is_gone(backend)
        os.kill(running[victim], signal.SIGKILL)
        assert wait_until(lambda: is_gone(running["jvm"]), 15)
        assert wait_until(lambda: is_gone(backend), 5)
        assert wait_until(lambda: not Path(running["sockets"][0]).parent.exists(), 2)


@pytest.mark.slow
def test_two_sessions_do_not_disturb_each_other_and_leave_nothing_behind(scratch: Path) -> None:
    with counting(scratch, "a", hold=True) as one, counting(scratch, "b", hold=True) as other:
        first, second = one.next("running"), other.next("running")
        for socket in first["sockets"] + second["sockets"]:
            assert Path(socket).is_relative_to(scratch)
            assert stat.S_IMODE(Path(socket).parent.stat().st_mode) == 0o700
        assert set(first["backends"]).isdisjoint(second["backends"])
        assert set(first["sockets"]).isdisjoint(second["sockets"])
        os.kill(first["backends"][0], signal.SIGKILL)
        one.go_on()
        one.next("result")
        one.next("stopped")
        # Its JVM lives on, and with it nothing of ours.
        assert not is_gone(first["jvm"])
        assert not Path(first["sockets"][0]).parent.exists()
        one.end()
        assert not is_gone(second["backends"][0])
        assert Path(second["sockets"][0]).exists()
        other.go_on()
        other.next("result")
        other.next("stopped")
        assert is_gone(second["backends"][0])
        other.end()
    assert leftovers(scratch) == []


@pytest.mark.slow
def test_files_in_the_working_directory_do_not_shadow_what_the_backend_imports(scratch: Path) -> None:
    work = scratch / "work"
    work.mkdir()
    for module in "json", "queue", "fsspec", "pyarrow":
        (work / f"{module}.py").write_text("raise ImportError('this is the file of a user')\n")
    with counting(scratch, "a", directory=str(work)) as program:
        program.next("running")
        program.next("result")
        program.next("stopped")
        program.end()


@pytest.mark.slow
def test_without_unix_sockets_the_backend_is_reached_over_the_loopback_interface(scratch: Path) -> None:
    with counting(scratch, "a", "-Dspark.statestore.transport=tcp", hold=True) as program:
        running = program.next("running")
        assert running["sockets"] == ["tcp"]
        (backend,) = running["backends"]
        addresses = {c.laddr.ip for c in psutil.Process(backend).net_connections("inet")}
        assert addresses == {"127.0.0.1"}
        os.kill(backend, signal.SIGKILL)
        program.go_on()
        program.next("result")
        program.next("stopped")
        program.end()


@pytest.mark.slow
def test_commits_of_a_second_application_in_one_jvm_are_reported_to_its_own_driver(
    built: Path, tmp_path: Path
):
    # A batch of foreachBatch fails if a store's commit was not reported.
    with Program("applications", directory=str(tmp_path)) as program:
        assert program.next("first") == [[1, 1], [2, 2]]
        assert program.next("second") == [[1, 2], [2, 4]]
        program.end()
