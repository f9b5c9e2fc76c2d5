"""Storage that hangs or is slow: requests end in time, what comes late changes nothing, and memory stays bounded."""

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

from spark_statestore.server.protocol import Kind
from spark_statestore.state.handles.owner import owner_of
from tests.checkpoint.stores import attempt, message
from tests.server.backends import Answer, Backend, commit, open_files, store
from tests.slow import SlowStorage
from tests.spark.counting import wait_until

LIMIT = 1


@pytest.fixture
def slow(tmp_path: Path) -> SlowStorage:
    return SlowStorage(tmp_path)


@pytest.fixture
def backend(slow: SlowStorage) -> Iterator[Backend]:
    running = Backend(environment=slow.environment)
    at_rest = threads(running)
    with running.client() as client:
        # Has it start what it does not stop again.
        missing = client.ask({"op": "load", "store": place(slow, "none"), "version": 99})
        assert missing.error["type"] == "CheckpointNotFoundError"
    assert wait_until(lambda: threads(running) == at_rest + 1, 5)
    yield running
    assert running.stop() == 0


def place(slow: SlowStorage, instance: str = "one", **options: str) -> dict[str, Any]:
    options = {"storageTimeoutSeconds": str(LIMIT), "compression": "none"} | options
    return store(slow.directory, instance, **options) | {"root": slow.url}


def data(rows: dict[bytes, bytes]) -> tuple[Kind, bytes, int]:
    return (Kind.DATA, message(rows), 0)


def put(slow: SlowStorage, version: int, by: str, instance: str = "one", **changes: Any) -> dict[str, Any]:
    return commit(slow.directory, version, by, store=place(slow, instance), **changes)


def owner(slow: SlowStorage, version: int) -> str | None:
    return owner_of((slow.directory / f"chk-{version}" / "_metadata").read_bytes())


def threads(backend: Backend) -> int:
    return psutil.Process(backend.process.pid).num_threads()


def check_given_up(answer: Answer, started: float, operation: str) -> None:
    assert LIMIT <= time.monotonic() - started < LIMIT + 20
    assert answer.error is not None
    assert answer.error["type"] == "StorageTimeoutError"
    for told in (
        f"within {LIMIT} s",
        repr(operation),
        "operator 0, partition 3, store default, version 1",
        "slow://",
        "storageTimeoutSeconds",
    ):
        assert told in answer.error["message"]


@pytest.mark.slow
def test_a_commit_that_hangs_is_given_up_and_comes_too_late_when_the_next_attempt_has_made_it(
    backend: Backend, slow: SlowStorage
) -> None:
    mine, next_ones = attempt(), attempt()
    with backend.client() as steady:
        assert steady.ask(put(slow, 7, attempt(), "steady"), data({b"s": b"1"})).error is None
        before = threads(backend), open_files(backend.process.pid)
        with slow.hanging("write", "chk-1/_metadata"):
            started = time.monotonic()
            with backend.client() as client:
                check_given_up(client.ask(put(slow, 1, mine), data({b"a": b"hung"})), started, "commit")
                assert client.is_closed()
            # Others are served meanwhile, and so is the next attempt.
            assert steady.ask(put(slow, 1, next_ones, "two"), data({b"a": b"next"})).error is None
            assert owner(slow, 1) == next_ones
        assert wait_until(lambda: (threads(backend), open_files(backend.process.pid)) == before, 20)
        # Whoever came too late has found the other one's metadata, and left it.
        assert owner(slow, 1) == next_ones
        loaded = steady.ask({"op": "load", "store": place(slow, "three"), "version": 1})
        assert loaded.of(Kind.DATA) == [message({b"a": b"next"}).to_pybytes()]


@pytest.mark.soak
def test_a_commit_that_hangs_while_its_changes_still_arrive_is_given_up(
    backend: Backend, slow: SlowStorage
) -> None:
    files = {"store": place(slow, fileStateThreshold="0")}
    large = [data({b"%d" % number: secrets.token_bytes(1 << 20)}) for number in range(6)]
    with slow.hanging("write", "shared/1-"), backend.client() as client:
        started = time.monotonic()
        check_given_up(client.ask(put(slow, 1, attempt()) | files, *large), started, "commit")
    with backend.client() as client:
        assert client.ask(put(slow, 1, attempt()) | files, *large).error is None
        assert wait_until(lambda: len(list((slow.directory / "shared").iterdir())) == 1, 20)


@pytest.mark.slow
def test_a_load_that_hangs_is_given_up_and_the_next_one_loads(backend: Backend, slow: SlowStorage) -> None:
    with backend.client() as client:
        assert client.ask(put(slow, 1, attempt()), data({b"a": b"1"})).error is None
    load = {"op": "load", "store": place(slow, "two"), "version": 1}
    with slow.hanging("read", "chk-1/_metadata"):
        with backend.client() as client:
            started = time.monotonic()
            check_given_up(client.ask(load), started, "load")
        with backend.client() as client:
            assert client.ask(load).of(Kind.DATA) == [message({b"a": b"1"}).to_pybytes()]


@pytest.mark.soak
def test_what_takes_many_short_calls_or_waits_for_its_asker_is_not_given_up(
    backend: Backend, slow: SlowStorage
) -> None:
    mine = attempt()
    with backend.client() as client:
        for version in range(1, 7):
            client.ask(put(slow, version, mine), data({b"a": b"%d" % version}))
        slow.calls(delay=0.3)
        clean = {
            "op": "cleanup",
            "store": place(slow),
            "version": 6,
            "attempt": mine,
            "idInPath": False,
            "retainFrom": 6,
            "mostVersions": 0,
        }
        started = time.monotonic()
        cleaned = client.ask(clean)
        assert (cleaned.error, cleaned.control.get("deleted")) == (None, 5)
        assert time.monotonic() - started > 2 * LIMIT
        slow.calls()
        client.frames.send_json(Kind.CONTROL, put(slow, 7, mine))
        client.frames.send(Kind.DATA, bytes(message({b"a": bytes(100_000)})))
        time.sleep(2.5 * LIMIT)
        client.frames.send(Kind.END)
        assert client.answer().error is None


@pytest.mark.soak
def test_time_in_which_the_backend_was_stopped_itself_does_not_count(
    backend: Backend, slow: SlowStorage
) -> None:
    process = psutil.Process(backend.process.pid)
    with slow.hanging("write", "chk-1/_metadata") as hang, backend.client() as client:
        client.frames.send_json(Kind.CONTROL, put(slow, 1, attempt()))
        client.frames.send(Kind.DATA, bytes(message({b"a": b"1"})))
        client.frames.send(Kind.END)
        hang.wait()
        process.suspend()
        time.sleep(2.5 * LIMIT)
        process.resume()
        hang.release()
        assert client.answer().error is None


@pytest.mark.slow
def test_a_commit_whose_asker_is_gone_is_not_published(backend: Backend, slow: SlowStorage) -> None:
    files = {"store": place(slow, fileStateThreshold="0", storageTimeoutSeconds="60")}
    before = threads(backend)
    with slow.hanging("write", "shared/1-") as hang:
        with backend.client() as client:
            client.frames.send_json(Kind.CONTROL, put(slow, 1, attempt()) | files)
            client.frames.send(Kind.DATA, bytes(message({b"a": b"1"})))
            client.frames.send(Kind.END)
            # As a task that is killed does.
            hang.wait()
        hang.release()
        assert wait_until(lambda: threads(backend) <= before, 20)
    assert not (slow.directory / "chk-1" / "_metadata").exists()
    with backend.client() as client:
        assert client.ask(put(slow, 1, attempt()), data({b"a": b"2"})).error is None


@pytest.mark.slow
def test_large_commits_wait_for_slow_storage_instead_of_filling_the_memory(
    backend: Backend, slow: SlowStorage
) -> None:
    clients, pieces = 40, 16
    piece = data({b"a": secrets.token_bytes(1 << 20)})
    # So that no commit is given up here.
    patient = {"storageTimeoutSeconds": "60"}
    process = psutil.Process(backend.process.pid)
    before = process.memory_info().rss

    def ask(number: int) -> Answer:
        with backend.client() as client:
            client.socket.settimeout(60)
            request = put(slow, number, attempt(), f"{number}") | {
                "store": place(slow, f"{number}", **patient)
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


@pytest.mark.soak
def test_a_commit_that_hangs_does_not_keep_others_from_their_turn(
    backend: Backend, slow: SlowStorage
) -> None:
    pieces = [data({b"a": secrets.token_bytes(1 << 20)})] * 5

    def ask(number: int) -> Answer:
        with backend.client() as client:
            return client.ask(put(slow, number, attempt(), f"{number}"), *pieces)

    with ThreadPoolExecutor(20) as pool:
        hangs = [slow.hanging("write", f"chk-{number}/_metadata") for number in range(1, 9)]
        opened = [hang.__enter__() for hang in hangs]
        # As many as there are places.
        first = [pool.submit(ask, number) for number in range(1, 9)]
        for hang in opened:
            hang.wait()
        others = [pool.submit(ask, number) for number in range(9, 19)]
        kinds = [answer.result().error for answer in first]
        assert [kind and kind["type"] for kind in kinds] == ["StorageTimeoutError"] * 8
        assert [answer.result().error for answer in others] == [None] * 10
        for hang in hangs:
            hang.__exit__(None, None, None)


@pytest.mark.slow
def test_sixty_four_connections_are_served_at_once_and_leave_nothing(
    backend: Backend, slow: SlowStorage
) -> None:
    slow.calls(delay=0.01)
    with backend.client() as steady:
        steady.ask({"op": "explode"})
        before = threads(backend), open_files(backend.process.pid)
        start = threading.Barrier(64)
        failures: list[Any] = []

        def work(number: int) -> None:
            with backend.client() as client:
                start.wait(30)
                handle: list[tuple[Kind, bytes, int]] = []
                for version in range(1, 6):
                    root = slow.directory / str(number)
                    at = place(slow, f"{number}") | {"root": f"slow://{root}", "partition": number}
                    request = commit(root, version, attempt(), store=at, hasParent=bool(handle))
                    answer = client.ask(request, *handle, data({b"%d" % version: b"v"}))
                    if answer.error:
                        failures.append(answer.error)
                    handle = [(Kind.HANDLE, answer.of(Kind.HANDLE)[0], 0)]
                loaded = client.ask({"op": "load", "store": at | {"instance": f"new {number}"}, "version": 5})
                if len(loaded.of(Kind.DATA)) != 5:
                    failures.append(loaded)

        workers = [threading.Thread(target=work, args=(number,)) for number in range(64)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
        assert failures == []
        assert wait_until(lambda: (threads(backend), open_files(backend.process.pid)) == before, 20)
