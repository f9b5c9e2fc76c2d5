"""Watchdog and listener in this process: threads that cannot start, and connections that were taken over."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_statestore.backend import supervision
from spark_statestore.backend.listener import Listener
from spark_statestore.backend.protocol import FrameSocket, Kind
from spark_statestore.backend.supervision import Supervisor
from tests.spark.counting import wait_until

Pair = tuple[socket.socket, socket.socket]
REQUEST = {"op": "load", "version": 3, "store": {"options": {"storageTimeoutSeconds": "1"}}}


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The two ends of a connection: the client's, and the backend's."""
    client, server = socket.socketpair()
    client.settimeout(20)
    with client, server:
        yield client, server


def refuse_threads(monkeypatch: pytest.MonkeyPatch, target: Callable[..., Any]) -> list[Any]:
    """Let the first thread of a function fail to start, as at the limit of threads; return what failed."""
    refused: list[Any] = []
    start = threading.Thread.start

    def start_or_refuse(thread: threading.Thread) -> None:
        function = thread._target  # type: ignore[attr-defined]
        if getattr(function, "__func__", function) is target and not refused:
            refused.append(function)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
    return refused


def hang(supervisor: Supervisor, connection: FrameSocket, seconds: float = 20) -> bool:
    """Hang in a request, and return whether it was cancelled in time."""
    try:
        with supervisor.supervise(REQUEST, connection):
            assert connection.context is not None
            connection.context.heartbeat()
            return wait_until(lambda: connection._taken_over, seconds)
    except ConnectionAbortedError:
        return True


def check_timeout(client: FrameSocket) -> None:
    answer = client.receive()
    assert answer is not None
    assert answer.json()["type"] == "StorageTimeoutError"


def test_watchdog_that_could_not_start_is_started_by_the_next_request(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, server = pair
    supervisor = Supervisor()
    refused = refuse_threads(monkeypatch, Supervisor._run)
    with supervisor.supervise(REQUEST, FrameSocket(server)):
        assert len(refused) == 1
    assert hang(supervisor, FrameSocket(server))
    check_timeout(FrameSocket(client))


def test_connection_of_a_hung_request_is_closed_if_the_answer_has_no_thread(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, server = pair
    refuse_threads(monkeypatch, supervision._answer)
    assert hang(Supervisor(), FrameSocket(server))
    assert FrameSocket(client).receive() is None


def test_hung_request_releases_its_permit_and_ends_with_an_error(pair: Pair) -> None:
    supervisor = Supervisor(permits=1)
    released = []

    def hang_with_permit() -> None:
        with supervisor.supervise(REQUEST, FrameSocket(pair[1])) as permit:
            permit.acquire()
            released.append(wait_until(lambda: supervisor._semaphore.acquire(blocking=False), 20))

    with pytest.raises(ConnectionAbortedError):
        hang_with_permit()
    assert released == [True]


class Requests:
    """Requests that hang until they are cancelled while answering, or fail after their answer."""

    def __init__(self) -> None:
        self.supervisor = Supervisor()
        self.returned = threading.Event()

    def serve(self, request: dict[str, Any], connection: FrameSocket) -> None:
        if request["op"] == "answer":
            connection.expect_end()
            connection.send_json(Kind.CONTROL, {"of": request["version"]})
            connection.send(Kind.END)
            raise RuntimeError("can't start new thread")
        try:
            hang(self.supervisor, connection)
        finally:
            self.returned.set()
        raise ConnectionAbortedError("cancelled")


@pytest.fixture
def served(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> tuple[FrameSocket, Requests]:
    """The client of a listener's connection, and what serves its requests."""
    client, server = pair
    requests = Requests()
    serving = Listener.__new__(Listener)
    serving._requests = requests  # type: ignore[assignment]
    serving._handshakes = threading.BoundedSemaphore(1)
    serving._handshakes.acquire()
    monkeypatch.setattr(Listener, "_handshake", lambda *_: True)
    threading.Thread(target=serving._serve, args=(server,), daemon=True).start()
    return FrameSocket(client), requests


def test_listener_leaves_a_hung_request_to_its_answer(served: tuple[FrameSocket, Requests]) -> None:
    client, requests = served
    client.send_json(Kind.CONTROL, REQUEST)
    client._flush()
    # The hung call has returned, while the answer waits for the end of the request.
    assert requests.returned.wait(20)
    time.sleep(0.2)
    client.send(Kind.END)
    check_timeout(client)
    assert client.receive() is None


def test_listener_sends_no_error_behind_a_complete_answer(served: tuple[FrameSocket, Requests]) -> None:
    client, _ = served
    for version in (1, 2):
        client.send_json(Kind.CONTROL, {"op": "answer", "version": version})
        client.send(Kind.END)
        answer = client.receive()
        assert answer is not None
        assert answer.json() == {"of": version}
        client.expect_end()
