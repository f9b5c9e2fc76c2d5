"""What has to be closed when its owner is."""

from __future__ import annotations

import threading
from typing import Protocol

from spark_statestore.errors import CheckpointIOError
from spark_statestore.state.objects import try_all

__all__ = ["Closeable", "CloseableRegistry"]


class Closeable(Protocol):
    """Anything that can be closed, more than once."""

    def close(self) -> None:
        """Let go of what it holds."""


class CloseableRegistry:
    """Closes what is registered with it when it is closed itself.

    Safe to use from several threads. Objects are told apart by identity.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._registered: dict[int, Closeable] = {}
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether the registry was closed."""
        return self._closed

    def register_closeable(self, closeable: Closeable) -> None:
        """Have an object closed with the registry.

        Raises
        ------
        CheckpointIOError
            If the registry is closed; the object is then closed too.
        """
        with self._lock:
            if not self._closed:
                self._registered[id(closeable)] = closeable
                return
        failure: Exception | None = None
        try:
            closeable.close()
        except Exception as error:  # noqa: BLE001 - that it comes too late is what to report
            failure = error
        late = CheckpointIOError(
            f"{closeable!r} was closed at once, because what it belongs to is closed already: its snapshot was "
            "cancelled, or its backend was closed. Take the snapshot again on an open backend."
        )
        if failure is not None:
            late.add_note(f"closing it failed too: {failure!r}")
        raise late

    def unregister_closeable(self, closeable: Closeable) -> bool:
        """Forget an object.

        Returns
        -------
        bool
            Whether it was registered still: False means that somebody closed it.
        """
        with self._lock:
            return self._registered.pop(id(closeable), None) is not None

    def close(self) -> None:
        """Close what is registered, the newest first, trying all before the first failure is raised.

        Later failures are notes of the first one.
        """
        with self._lock:
            self._closed = True
            registered, self._registered = self._registered, {}
        try_all(closeable.close for closeable in reversed(registered.values()))
