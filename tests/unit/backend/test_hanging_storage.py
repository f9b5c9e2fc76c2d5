"""Hung and slow storage: requests are cancelled in time, late calls change nothing, memory is bounded."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from spark_statestore.backend.protocol import Kind
from spark_statestore.formats.metadata import attempt_id_of
from tests.spark.counting import wait_until
from tests.support.slow import SlowStorage
from tests.unit.backend.backends import Answer, Backend, cleanup, commit, data, open_files, store
from tests.unit.store.stores import attempt_id

LIMIT = 1


@pytest.fixture
def slow(tmp_path: Path) -> SlowStorage:
    return SlowStorage(tmp_path)


@pytest.fixture
def backend(slow: SlowStorage) -> Iterator[Backend]:
    running = Backend(environment=slow.environment)
    try:
        with running.client() as client:
            # The first request starts a thread that stays.
            missing = client.ask({"op": "load", "store": store_of(slow, "none"), "version": 99})
            assert missing.error["type"] == "CheckpointNotFoundError"
        assert wait_until(lambda: is_at_rest(running), 20)
        yield running
    finally:
        status = running.stop()
    assert status == 0


def store_of(slow: SlowStorage, instance: str = "one", **options: str) -> dict[str, Any]:
    options = {"storageTimeoutSeconds": str(LIMIT), "compression": "none"} | options
    return store(slow.directory, instance, **options) | {"root": slow.url}


def put(slow: SlowStorage, version: int, by: str, instance: str = "one", **changes: Any) -> dict[str, Any]:
    return commit(slow.directory, version, by, store=store_of(slow, instance), **changes)


def owner(slow: SlowStorage, version: int) -> str | None:
    return attempt_id_of((slow.directory / f"chk-{version}" / "_metadata").read_bytes())


def threads(backend: Backend) -> int:
    return psutil.Process(backend.process.pid).num_threads()


def is_at_rest(backend: Backend) -> bool:
    """Return whether the threads of the start and of the connection have ended: their number is stable."""
    before = threads(backend)
    time.sleep(0.5)
    return threads(backend) == before


def check_given_up(answer: Answer, started: float, operation: str) -> None:
    assert LIMIT <= time.monotonic() - started < LIMIT + 20
    assert answer.error is not None
    assert answer.error["type"] == "StorageTimeoutError"
    place = "operator 0, partition 3, store default, version 1"
    for text in (f"within {LIMIT} s", repr(operation), place, "slow://", "storageTimeoutSeconds"):
        assert text in answer.error["message"]


@pytest.mark.slow
def test_hung_commit_is_cancelled_and_does_not_replace_its_retry(backend: Backend, slow: SlowStorage) -> None:
    own_id, next_ones = attempt_id(), attempt_id()
    with backend.client() as steady:
        assert steady.ask(put(slow, 7, attempt_id(), "steady"), data({b"s": b"1"})).error is None
        before = threads(backend), open_files(backend.process.pid)
        with slow.hanging("write", "chk-1/_metadata"):
            started = time.monotonic()
            with backend.client() as client:
                check_given_up(client.ask(put(slow, 1, own_id), data({b"a": b"hung"})), started, "commit")
                assert client.is_closed()
            # Others are served meanwhile, and so is the next attempt.
            assert steady.ask(put(slow, 1, next_ones, "two"), data({b"a": b"next"})).error is None
            assert owner(slow, 1) == next_ones
        assert wait_until(lambda: (threads(backend), open_files(backend.process.pid)) == before, 20)
        # The late attempt finds the metadata of the other one, and keeps it.
        assert owner(slow, 1) == next_ones
        loaded = steady.ask({"op": "load", "store": store_of(slow, "three"), "version": 1})
        assert loaded.payloads(Kind.DATA) == [data({b"a": b"next"})[1]]


@pytest.mark.soak
def test_commit_hung_while_receiving_changes_is_cancelled(backend: Backend, slow: SlowStorage) -> None:
    files = {"store": store_of(slow, fileStateThreshold="0")}
    large = [data({b"%d" % number: secrets.token_bytes(1 << 20)}) for number in range(6)]
    with slow.hanging("write", "shared/1-"), backend.client() as client:
        started = time.monotonic()
        check_given_up(client.ask(put(slow, 1, attempt_id()) | files, *large), started, "commit")
    with backend.client() as client:
        assert client.ask(put(slow, 1, attempt_id()) | files, *large).error is None
        assert wait_until(lambda: len(list((slow.directory / "shared").iterdir())) == 1, 20)


@pytest.mark.slow
def test_hung_load_is_cancelled_and_its_retry_succeeds(backend: Backend, slow: SlowStorage) -> None:
    with backend.client() as client:
        assert client.ask(put(slow, 1, attempt_id()), data({b"a": b"1"})).error is None
    load = {"op": "load", "store": store_of(slow, "two"), "version": 1}
    with slow.hanging("read", "chk-1/_metadata"):
        with backend.client() as client:
            started = time.monotonic()
            check_given_up(client.ask(load), started, "load")
        with backend.client() as client:
            assert client.ask(load).payloads(Kind.DATA) == [data({b"a": b"1"})[1]]


@pytest.mark.soak
def test_request_with_many_short_calls_or_a_slow_client_goes_on(backend: Backend, slow: SlowStorage) -> None:
    own_id = attempt_id()
    with backend.client() as client:
        for version in range(1, 7):
            client.ask(put(slow, version, own_id), data({b"a": b"%d" % version}))
        slow.calls(delay=0.3)
        started = time.monotonic()
        cleaned = client.ask(cleanup(slow.directory, 6, own_id, retain_from=6) | {"store": store_of(slow)})
        assert (cleaned.error, cleaned.control.get("deleted")) == (None, 5)
        assert time.monotonic() - started > 2 * LIMIT
        slow.calls()
        client.begin(put(slow, 7, own_id), data({b"a": bytes(100_000)}))
        time.sleep(2.5 * LIMIT)
        client.frames.send(Kind.END)
        assert client.answer().error is None


@pytest.mark.soak
def test_request_survives_a_suspension_of_its_process(backend: Backend, slow: SlowStorage) -> None:
    process = psutil.Process(backend.process.pid)
    with slow.hanging("write", "chk-1/_metadata") as hang, backend.client() as client:
        client.begin(put(slow, 1, attempt_id()), data({b"a": b"1"}))
        client.frames.send(Kind.END)
        hang.wait()
        process.suspend()
        time.sleep(2.5 * LIMIT)
        process.resume()
        hang.release()
        assert client.answer().error is None


@pytest.mark.slow
def test_commit_of_a_disconnected_client_is_not_published(backend: Backend, slow: SlowStorage) -> None:
    files = {"store": store_of(slow, fileStateThreshold="0", storageTimeoutSeconds="60")}
    before = threads(backend)
    with slow.hanging("write", "shared/1-") as hang:
        with backend.client() as client:
            client.begin(put(slow, 1, attempt_id()) | files, data({b"a": b"1"}))
            client.frames.send(Kind.END)
            # As a task that is killed does.
            hang.wait()
        hang.release()
        assert wait_until(lambda: threads(backend) <= before, 20)
    assert not (slow.directory / "chk-1" / "_metadata").exists()
    with backend.client() as client:
        assert client.ask(put(slow, 1, attempt_id()), data({b"a": b"2"})).error is None


@pytest.mark.slow
def test_large_commits_wait_for_permits_on_slow_storage(backend: Backend, slow: SlowStorage) -> None:
    clients, pieces = 40, 16
    piece = data({b"a": secrets.token_bytes(1 << 20)})
    # So that no commit is given up here.
    long_timeout = {"storageTimeoutSeconds": "60"}
    process = psutil.Process(backend.process.pid)
    before = process.memory_info().rss

    def ask(number: int) -> Answer:
        with backend.client() as client:
            client.socket.settimeout(60)
            request = put(slow, number, attempt_id(), f"{number}") | {
                "store": store_of(slow, f"{number}", **long_timeout)
            }
            return client.ask(request, *[piece] * pieces)

    most = 0
    slow.calls(delay=1.0)
    with ThreadPoolExecutor(clients) as pool:
        answers = [pool.submit(ask, number) for number in range(1, clients + 1)]
        while not all(answer.done() for answer in answers):
            most = max(most, process.memory_info().rss - before)
            time.sleep(0.02)
        assert [answer.result().error for answer in answers] == [None] * clients
    print(f"\n{clients} commits of {pieces} MiB at once: {most >> 20} MiB more at most")
    # With their copies on the way to storage all of them would take twice their 640 MiB.
    assert most < 800 << 20
    slow.calls()
    assert len(list(slow.directory.glob("chk-*/_metadata"))) == clients


@pytest.mark.slow
def test_backend_serves_64_connections_and_leaks_nothing(backend: Backend, slow: SlowStorage) -> None:
    slow.calls(delay=0.01)
    with backend.client() as steady:
        steady.ask({"op": "explode"})
        before = threads(backend), open_files(backend.process.pid)
        start = threading.Barrier(64)

        def work(number: int) -> int:
            """Commit five versions as one of 64 tasks; return the number of batches that a load has."""
            root = slow.directory / str(number)
            # So that no commit is given up on a machine that is slow itself.
            task_store = store_of(slow, f"{number}", storageTimeoutSeconds="60")
            task_store |= {"root": f"slow://{root}", "partition": number}
            with backend.client() as client:
                start.wait(30)
                handle: list[tuple[Kind, bytes, int]] = []
                for version in range(1, 6):
                    request = commit(root, version, attempt_id(), store=task_store, hasParent=bool(handle))
                    answer = client.ask(request, *handle, data({b"%d" % version: b"v"}))
                    assert answer.error is None
                    handle = [(Kind.HANDLE, answer.payloads(Kind.HANDLE)[0], 0)]
                new_store = task_store | {"instance": f"new {number}"}
                return len(client.ask({"op": "load", "store": new_store, "version": 5}).payloads(Kind.DATA))

        with ThreadPoolExecutor(64) as pool:
            assert list(pool.map(work, range(64))) == [5] * 64
        assert wait_until(lambda: (threads(backend), open_files(backend.process.pid)) == before, 20)
