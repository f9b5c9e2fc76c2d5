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

REQUEST = {"op": "load", "version": 3, "store": {"options": {"storageTimeoutSeconds": "1"}}}


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a connection: the client's, and the backend's."""
    client, server = socket.socketpair()
    client.settimeout(20)
    with client, server:
        yield client, server


def refuse_threads(monkeypatch: pytest.MonkeyPatch, target: Callable[[Any], bool]) -> list[Any]:
    """Let threads with some targets fail to start, as at the limit of threads, and return those that did."""
    refused: list[Any] = []
    start = threading.Thread.start

    def start_or_refuse(thread: threading.Thread) -> None:
        function = thread._target  # type: ignore[attr-defined]
        if target(function) and not refused:
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


def test_watchdog_that_could_not_start_is_started_by_the_next_request(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, server = pair
    supervisor = Supervisor()
    refused = refuse_threads(
        monkeypatch, lambda function: getattr(function, "__func__", None) is Supervisor._run
    )
    with supervisor.supervise(REQUEST, FrameSocket(server)):
        assert len(refused) == 1
    assert hang(supervisor, FrameSocket(server))
    answer = FrameSocket(client).receive()
    assert answer is not None
    assert answer.json()["type"] == "StorageTimeoutError"


def test_connection_of_a_hung_request_is_closed_if_the_answer_has_no_thread(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, server = pair
    refuse_threads(monkeypatch, lambda function: function is supervision._answer)
    assert hang(Supervisor(), FrameSocket(server))
    assert FrameSocket(client).receive() is None


def test_hung_request_releases_its_permit_and_ends_with_an_error(
    pair: tuple[socket.socket, socket.socket],
) -> None:
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
def served(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> tuple[FrameSocket, Requests]:
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


def ask(client: FrameSocket, request: dict[str, Any], *, end: bool = True) -> None:
    client.send_json(Kind.CONTROL, request)
    if end:
        client.send(Kind.END)
    else:
        client._flush()


def test_listener_leaves_a_connection_to_the_answer_of_a_hung_request(
    served: tuple[FrameSocket, Requests],
) -> None:
    client, requests = served
    ask(client, REQUEST, end=False)
    # The hung call has returned, while the answer waits for the end of the request.
    assert requests.returned.wait(20)
    time.sleep(0.2)
    client.send(Kind.END)
    answer = client.receive()
    assert answer is not None
    assert answer.json()["type"] == "StorageTimeoutError"
    assert client.receive() is None


def test_listener_sends_no_error_behind_a_complete_answer(served: tuple[FrameSocket, Requests]) -> None:
    client, _ = served
    for version in (1, 2):
        ask(client, {"op": "answer", "version": version})
        answer = client.receive()
        assert answer is not None
        assert answer.json() == {"of": version}
        client.expect_end()
