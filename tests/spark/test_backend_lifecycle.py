"""Lifecycle of the backend process: killed during a query, and ended with its session."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from spark_statestore.options import OPTION_PREFIX
from tests.spark.counting import (
    Program,
    backend_pid,
    backends_of,
    finish,
    is_gone,
    jvm_of,
    kill,
    metric,
    run_to,
    socket_of,
    start_counting,
    wait_for_batch,
    wait_until,
)
from tests.spark.harness import Provider, Store
from tests.spark.queries import unload_all
from tests.support.commands import interpreter
from tests.support.paths import ROOT
from tests.support.s3 import new_bucket, s3_service


@pytest.fixture
def scratch(built: Path) -> Iterator[Path]:
    """Return a directory whose name is short enough for sockets below it, for all files of a program."""
    directory = Path(tempfile.mkdtemp(prefix="life-"))
    yield directory
    shutil.rmtree(directory)


def counting(scratch: Path, name: str, **arguments: Any) -> Program:
    """Start the counting program, with all its files below `scratch`."""
    temporary = scratch / "tmp"
    temporary.mkdir(exist_ok=True)
    confs = {"spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={temporary}"}
    return Program(
        "count", {"TMPDIR": str(temporary)}, checkpoint=str(scratch / name), confs=confs, **arguments
    )


def leftovers(scratch: Path) -> list[str]:
    return [p.name for p in (scratch / "tmp").iterdir() if p.name.startswith(("spark-statestore", "sst-"))]


def own_backends(jvm: int) -> list[psutil.Process]:
    """Return a shared JVM's backends with this interpreter; other tests may have started others."""
    return [backend for backend in backends_of(jvm) if backend.cmdline()[:1] == [sys.executable]]


def only_backend(jvm: int) -> psutil.Process:
    assert wait_until(lambda: len(own_backends(jvm)) == 1 and socket_of(own_backends(jvm)[0]).exists(), 20)
    return own_backends(jvm)[0]


_RECORDS_CLOSED = """
import json, os
from spark_statestore.backend.open_stores import OpenStores

def close(stores, instances, runs, close=OpenStores.close):
    close(stores, instances, runs)
    with open(os.environ["CLOSED"], "a") as file:
        print(json.dumps([instances, runs, len(stores._cached)]), file=file)

OpenStores.close = close
"""


@pytest.mark.slow
def test_backend_drops_closed_stores_and_ended_runs(spark: Any, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (tmp_path / "sitecustomize.py").write_text(_RECORDS_CLOSED)
    python = interpreter(tmp_path, f'export CLOSED={closed} PYTHONPATH="{tmp_path}:{ROOT}:$PYTHONPATH"')
    session = spark.newSession()
    confs = {OPTION_PREFIX + "python": python, OPTION_PREFIX + "commit": "batch"}
    query = start_counting(session, tmp_path / "checkpoint", confs=confs)
    wait_for_batch(query, 2)
    partitions = int(session.conf.get("spark.sql.shuffle.partitions"))
    assert not closed.exists()
    finish(session, query, 2)
    unload_all(spark)

    def received() -> list[list[Any]]:
        return [json.loads(line) for line in closed.read_text().splitlines()] if closed.exists() else []

    try:
        assert wait_until(lambda: len({store for got in received() for store in got[0]}) >= partitions, 30)
        assert str(query.runId) in [run for got in received() for run in got[1]]
        assert received()[-1][2] == 0
    finally:
        psutil.Process(backend_pid(spark, python)).kill()


def test_request_is_repeated_however_many_connections_a_killed_backend_had(
    spark: Any, tmp_path: Path
) -> None:
    providers = [Provider(spark, f"file:{tmp_path}", partition=partition) for partition in range(16)]
    stores = [provider.open(0) for provider in providers]
    begin = threading.Barrier(len(stores))

    def commit_at_once(store: Store) -> None:
        store.put(("a", 1), (1, 120_000))
        begin.wait()
        store.commit()

    threads = [threading.Thread(target=commit_at_once, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kill(backend_pid(spark, sys.executable))
    # Each attempt at the request would take one of the connections.
    assert providers[0].open(1).commit() == 2
    for provider in providers:
        provider.close()


@contextmanager
def stopped_at_end(query: Any) -> Iterator[None]:
    """Stop a query that a failed test would leave to the later ones."""
    try:
        yield
    finally:
        query.stop()


@pytest.mark.slow
def test_query_survives_kills_of_its_backend(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", 1)
    chance = random.Random(7)
    kills = 2
    query = start_counting(session, tmp_path)
    with stopped_at_end(query):
        batch = 1
        for number in range(kills):
            wait_for_batch(query, batch)
            backend = only_backend(jvm_of(spark))
            if number % 2:
                # A stopped process accepts requests without answering: it is killed during commits.
                backend.suspend()
                time.sleep(1.0)
                assert query.lastProgress.batchId <= batch + 20
            else:
                time.sleep(chance.uniform(0.0, 0.3))
            backend.kill()
            batch = query.lastProgress.batchId + 2
        finish(session, query, batch)
    assert metric(query, "backendRestarts") == kills
    # The data stored meanwhile is complete as well.
    run_to(session, tmp_path, query.lastProgress.batchId + 2)


@pytest.mark.slow
def test_query_survives_a_kill_of_a_starting_backend(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    jvm = jvm_of(spark)
    query = start_counting(session, tmp_path)
    with stopped_at_end(query):
        wait_for_batch(query, 1)
        first = only_backend(jvm)
        first.kill()
        assert wait_until(lambda: [p for p in own_backends(jvm) if p.pid != first.pid], 20)
        (second,) = own_backends(jvm)
        assert not socket_of(second).exists()
        second.kill()
        finish(session, query, query.lastProgress.batchId + 2)


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["python", "jvm"])
def test_backend_ends_with_a_killed_driver(scratch: Path, victim: str) -> None:
    with counting(scratch, "a", hold=True) as program:
        running = program.next("running")
        (backend,) = running["backends"]
        # In the middle of a batch: they follow one another without a pause.
        os.kill(running[victim], signal.SIGKILL)
        assert wait_until(lambda: is_gone(running["jvm"]), 15)
        assert wait_until(lambda: is_gone(backend), 5)
        assert wait_until(lambda: not Path(running["sockets"][0]).parent.exists(), 2)


@pytest.mark.soak
def test_backends_of_two_sessions_are_isolated_and_leave_no_files(scratch: Path) -> None:
    with counting(scratch, "a", hold=True) as program_a, counting(scratch, "b", hold=True) as program_b:
        first, second = program_a.next("running"), program_b.next("running")
        for socket in first["sockets"] + second["sockets"]:
            assert Path(socket).is_relative_to(scratch)
            assert stat.S_IMODE(Path(socket).parent.stat().st_mode) == 0o700
        assert set(first["backends"]).isdisjoint(second["backends"])
        assert set(first["sockets"]).isdisjoint(second["sockets"])
        os.kill(first["backends"][0], signal.SIGKILL)
        program_a.resume()
        program_a.next("result")
        program_a.next("stopped")
        # Its JVM is still running, without any process of this project.
        assert not is_gone(first["jvm"])
        assert not Path(first["sockets"][0]).parent.exists()
        program_a.end()
        assert not is_gone(second["backends"][0])
        assert Path(second["sockets"][0]).exists()
        program_b.resume()
        program_b.next("result")
        program_b.next("stopped")
        assert is_gone(second["backends"][0])
        program_b.end()
    assert leftovers(scratch) == []


@pytest.mark.soak
def test_start_removes_directories_of_killed_processes_only(scratch: Path) -> None:
    with counting(scratch, "living", hold=True) as living:
        living.next("running")
        used = set(leftovers(scratch))
        # The archive of the package, and the directory of the socket.
        assert len(used) == 2
        with counting(scratch, "killed", hold=True) as killed:
            running = killed.next("running")
            (backend,) = running["backends"]
            # A killed container has no time to clean up either.
            os.kill(backend, signal.SIGSTOP)
            for pid in running["jvm"], running["python"], backend:
                os.kill(pid, signal.SIGKILL)
            for pid in running["jvm"], running["python"], backend:
                assert wait_until(lambda pid=pid: is_gone(pid), 15)
        remaining = set(leftovers(scratch)) - used
        assert len(remaining) == 2
        with counting(scratch, "next") as program:
            program.next("running")
            program.next("result")
            program.next("stopped")
            program.end()
        assert set(leftovers(scratch)) == used
        living.resume()
        living.next("result")
        living.next("stopped")
        living.end()
    assert leftovers(scratch) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_applications_of_one_jvm_use_backends_of_their_own(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A batch of foreachBatch fails if a store's commit was not reported to the driver of the running
    # application.
    with s3_service() as url:
        bucket = new_bucket(url, monkeypatch)
        with Program("applications", directory=str(tmp_path), bucket=bucket) as program:
            for number, application in enumerate(("first", "second"), 1):
                counts = [[1, number], [2, 2 * number]]
                assert program.next(application) == {
                    "storageRetries": "7" if number == 1 else None,
                    "local": [counts, counts, number - 1],
                    "s3": [counts, counts, number - 1],
                    "backends": 1,
                    "backends after": 0,
                }
            program.end()
