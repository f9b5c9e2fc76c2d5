"""Notices requests whose storage hangs, and answers for them."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from spark_statestore.checkpoint.files.work import Work, enter
from spark_statestore.errors import StorageTimeoutError
from spark_statestore.options import DEFAULT_STORAGE_TIMEOUT
from spark_statestore.server.protocol import FrameSocket, Kind

__all__ = ["RequestWatch"]

_logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
# For the rest of a request that nobody else reads.
_DRAIN_SECONDS = 60.0


class RequestWatch:
    """Watches over requests from a thread of its own.

    A request that waits for storage longer than its limit is given up: whoever asked gets an error, in the place of
    the thread that hangs, and that thread changes nothing any more should it come back. Until then it costs
    a thread and a connection.
    """

    def __init__(self) -> None:
        self._watched: set[_Watched] = set()
        self._lock = threading.Lock()
        self._is_running = False

    def over(self, request: dict[str, Any], connection: FrameSocket) -> _Watched:
        """Watch over what this thread does for a request within the context.

        Leaving it raises `ConnectionAbortedError` if the request was given up meanwhile.
        """
        return _Watched(self, request, connection)

    def add(self, one: _Watched) -> None:
        """Begin to watch over a request."""
        with self._lock:
            self._watched.add(one)
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._look_on, daemon=True).start()

    def remove(self, one: _Watched) -> None:
        """Watch over a request no more."""
        with self._lock:
            self._watched.discard(one)

    def _look_on(self) -> None:
        while True:
            before = time.monotonic()
            time.sleep(_LOOK_SECONDS)
            overslept = time.monotonic() - before - _LOOK_SECONDS
            with self._lock:
                watched = list(self._watched)
            for one in watched:
                try:
                    if overslept > _LOOK_SECONDS:
                        one.work.forgive(overslept)
                    self._look_at(one)
                except Exception:
                    _logger.exception("could not look after a request")

    def _look_at(self, one: _Watched) -> None:
        taken: list[FrameSocket] = []
        if one.work.give_up_if_hung(time.monotonic(), lambda: taken.append(one.connection.take_over())):
            threading.Thread(target=_answer, args=(one, taken[0]), daemon=True).start()


class _Watched:
    """One request."""

    __slots__ = ("_before", "_watch", "connection", "request", "work")

    def __init__(self, watch: RequestWatch, request: dict[str, Any], connection: FrameSocket) -> None:
        self._watch = watch
        self.request = request
        self.connection = connection
        self.work = Work(_timeout_of(request), self._is_asked)
        self._before: Work | None = None

    def __enter__(self) -> Work:
        self.connection.work = self.work
        self._before = enter(self.work)
        self._watch.add(self)
        return self.work

    def __exit__(self, *_: object) -> None:
        enter(self._before)
        self._watch.remove(self)
        # Whether it was given up is decided here, once and for all.
        self.work.pause()
        self.connection.work = None

    def _is_asked(self) -> bool:
        return not self.connection.is_closed_by_other_side()


def _timeout_of(request: dict[str, Any]) -> float:
    """Seconds that a request may wait for storage."""
    try:
        return max(1.0, float(request["store"]["options"]["storageTimeoutSeconds"]))
    except (KeyError, TypeError, ValueError):
        # What is wrong with it is told when the request is served.
        return float(DEFAULT_STORAGE_TIMEOUT)


def _answer(one: _Watched, connection: FrameSocket) -> None:
    error = StorageTimeoutError(_told(one))
    _logger.error("%s", error)
    try:
        if not connection.has_answered:
            connection.expire_after(_DRAIN_SECONDS)
            # The JVM reads only once it has sent everything.
            connection.drain()
            connection.send_json(Kind.ERROR, {"type": type(error).__name__, "message": str(error)})
    except Exception as failure:  # noqa: BLE001 - whoever asked is gone, or will notice
        _logger.debug("could not answer for a request that hangs: %s", failure)
    finally:
        connection.close()


def _told(one: _Watched) -> str:
    request = one.request
    store = request.get("store")
    store = store if isinstance(store, dict) else {}
    which = f", version {request['version']}" if "version" in request else ""
    return (
        f"storage did not answer within {one.work.limit:.0f} s, and the request {request.get('op')!r} of operator "
        f"{store.get('operator')}, partition {store.get('partition')}, store {store.get('name')}{which} at "
        f"{store.get('root')} was given up. Nothing is published for it from now on; run again, the task starts from "
        "the version before. Check that the storage is reachable; if its calls may take longer, raise the option "
        "storageTimeoutSeconds."
    )
