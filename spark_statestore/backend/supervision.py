"""A watchdog cancels requests whose storage calls hang, and a semaphore admits the large ones."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from spark_statestore.backend.protocol import FrameSocket, Kind
from spark_statestore.errors import StorageTimeoutError
from spark_statestore.files.request_context import RequestContext, enter
from spark_statestore.options import DEFAULT_STORAGE_TIMEOUT

_logger = logging.getLogger(__name__)

LARGE_BYTES = 4 << 20
"""Bytes of state in memory from which on a request needs a permit."""

_PERMITS = 8

_POLL_SECONDS = 0.5
# Limit for reading the rest of a cancelled request, in seconds.
_DRAIN_SECONDS = 60.0


class Permit:
    """One request's permit of the admission semaphore, once acquired.

    The semaphore bounds the memory of commits while storage is slow: it would else grow with the number of
    tasks, each with up to the option ``fileStateThreshold``. A request has at most one permit, so no two wait
    for each other.
    """

    def __init__(self, semaphore: threading.BoundedSemaphore, context: RequestContext) -> None:
        self._semaphore = semaphore
        self._context = context
        self._release: Callable[[], None] | None = None

    def acquire(self) -> None:
        """Wait for a permit, unless the request has one."""
        if self._release is not None:
            return
        # Waiting for other requests does not count as waiting for storage.
        self._context.suspend()
        self._semaphore.acquire()
        self._release = release = _once(self._semaphore.release)
        # A request that hangs would keep its permit.
        try:
            self._context.on_cancel(release)
        except ConnectionAbortedError:
            release()
            raise
        self._context.heartbeat()

    def release(self) -> None:
        """Release the permit, if there is one."""
        if self._release is not None:
            self._release()


class Supervisor:
    """A supervisor of the requests of all connections, with one watchdog thread.

    A request that waits for storage longer than its timeout is cancelled: another thread answers with an
    error, and the hung thread publishes nothing if its call returns. Until then it occupies a thread and a
    connection.
    """

    def __init__(self, permits: int = _PERMITS) -> None:
        self._semaphore = threading.BoundedSemaphore(permits)
        self._supervised: set[_Supervised] = set()
        self._lock = threading.Lock()
        self._is_running = False

    def supervise(self, request: dict[str, Any], connection: FrameSocket) -> _Supervised:
        """Return a context manager that supervises this thread's work on a request, and gives its permit.

        Leaving it releases the permit, and raises `ConnectionAbortedError` if the request was cancelled.
        """
        return _Supervised(self, request, connection, self._semaphore)

    def add(self, supervised: _Supervised) -> None:
        """Start supervising a request."""
        with self._lock:
            self._supervised.add(supervised)
            if not self._is_running:
                try:
                    threading.Thread(target=self._run, daemon=True).start()
                    self._is_running = True
                except RuntimeError:
                    # Thread limit reached; the next request tries again, and this one is served meanwhile.
                    _logger.exception("could not start the watchdog of hung requests")

    def remove(self, supervised: _Supervised) -> None:
        """Stop supervising a request."""
        with self._lock:
            self._supervised.discard(supervised)

    def _run(self) -> None:
        while True:
            before = time.monotonic()
            time.sleep(_POLL_SECONDS)
            overslept = time.monotonic() - before - _POLL_SECONDS
            with self._lock:
                requests = list(self._supervised)
            for supervised in requests:
                try:
                    if overslept > _POLL_SECONDS:
                        supervised.context.extend_deadline(overslept)
                    self._check(supervised)
                except Exception:
                    _logger.exception("could not check a request for a hung storage call")

    def _check(self, supervised: _Supervised) -> None:
        connections: list[FrameSocket] = []
        if supervised.context.cancel_if_hung(
            time.monotonic(), lambda: connections.append(supervised.connection.take_over())
        ):
            try:
                threading.Thread(target=_answer, args=(supervised, connections[0]), daemon=True).start()
            except RuntimeError:
                # Thread limit reached. The client sends the request again if its connection ends without an
                # answer.
                _logger.exception("could not answer a hung request")
                connections[0].close()


class _Supervised:
    """A context manager for one supervised request."""

    __slots__ = ("_before", "_permit", "_supervisor", "connection", "context", "request")

    def __init__(
        self,
        supervisor: Supervisor,
        request: dict[str, Any],
        connection: FrameSocket,
        semaphore: threading.BoundedSemaphore,
    ) -> None:
        self._supervisor = supervisor
        self.request = request
        self.connection = connection
        self.context = RequestContext(_timeout_of(request), connection.is_connected)
        self._permit = Permit(semaphore, self.context)
        self._before: RequestContext | None = None

    def __enter__(self) -> Permit:
        self.connection.context = self.context
        self._before = enter(self.context)
        self._supervisor.add(self)
        return self._permit

    def __exit__(self, *_: object) -> None:
        self._permit.release()
        enter(self._before)
        self._supervisor.remove(self)
        # Raises if the request was cancelled; after it, the request can no longer be.
        self.context.suspend()
        self.connection.context = None


def _once(function: Callable[[], None]) -> Callable[[], None]:
    lock = threading.Lock()

    def call() -> None:
        if lock.acquire(blocking=False):
            function()

    return call


def _timeout_of(request: dict[str, Any]) -> float:
    """Return the seconds that a request may wait for storage."""
    try:
        options = request["options"] if "options" in request else request["store"]["options"]
        return max(1.0, float(options["storageTimeoutSeconds"]))
    except (KeyError, TypeError, ValueError):
        # Serving the request reports what is wrong with it.
        return float(DEFAULT_STORAGE_TIMEOUT)


def _answer(supervised: _Supervised, connection: FrameSocket) -> None:
    error = StorageTimeoutError(_message_of(supervised))
    _logger.error("%s", error)
    try:
        if not connection.has_answered:
            connection.expire_after(_DRAIN_SECONDS)
            # The JVM reads the answer only after it has sent the whole request.
            connection.drain()
            connection.send_json(Kind.ERROR, {"type": type(error).__name__, "message": str(error)})
    except Exception as failure:  # noqa: BLE001 - the client has disconnected, or will time out
        _logger.debug("could not answer a hung request: %s", failure)
    finally:
        connection.close()


def _message_of(supervised: _Supervised) -> str:
    request = supervised.request
    if "path" in request:
        subject = f"the file {request['path']}"
        outcome = (
            "It may take effect later: the query fails, and its next start continues from the files that are "
            "there"
        )
    elif request.get("op") == "publish":
        subject = (
            f"the commits of all stores of batch {request['version'] - 1}, one of them at "
            f"{request['store'].get('root')}"
        )
        outcome = "The batch fails; the next start of the query runs it again"
    else:
        store = request.get("store")
        store = store if isinstance(store, dict) else {}
        version = f", version {request['version']}" if "version" in request else ""
        subject = (
            f"operator {store.get('operator')}, partition {store.get('partition')}, store "
            f"{store.get('name')}{version} at {store.get('root')}"
        )
        outcome = "It publishes nothing; a retried task starts from the previous version"
    return (
        f"storage did not answer within {supervised.context.limit:.0f} s, and the request "
        f"{request.get('op')!r} of {subject} was cancelled. {outcome}. Check that the storage is reachable; "
        "if its calls may take longer, raise the option storageTimeoutSeconds."
    )
