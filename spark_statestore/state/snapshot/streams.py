"""A stream that another thread may close while it is written to."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from spark_statestore.checkpoint.streams.base import CheckpointStateOutputStream
from spark_statestore.errors import CheckpointIOError

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_statestore.checkpoint.files.base import Buffer
    from spark_statestore.state.handles.base import StreamStateHandle

__all__ = ["CancellableStream"]

_logger = logging.getLogger(__name__)


class CancellableStream(CheckpointStateOutputStream):
    """Wraps a stream so that any thread may close it, at any moment, without waiting.

    The streams themselves are written and closed by one thread. Closing one below a running write
    could lose the file that the write is about to open, or let it write to a file descriptor that
    is somebody else's by then. So the stream is closed at once if nothing is running on it, and
    otherwise by the thread that is, as soon as it is done.

    Parameters
    ----------
    stream
        The stream.
    """

    def __init__(self, stream: CheckpointStateOutputStream) -> None:
        self._stream = stream
        self._busy = threading.Lock()
        self._closed = False

    def get_pos(self) -> int:
        return self._stream.get_pos()

    def write(self, data: Buffer) -> None:
        self._run(lambda: self._stream.write(data))

    def flush(self) -> None:
        self._run(self._stream.flush)

    def sync(self) -> None:
        self._run(self._stream.sync)

    def close(self) -> None:
        self._closed = True
        if self._busy.acquire(blocking=False):
            try:
                self._stream.close()
            finally:
                self._busy.release()

    def close_and_get_handle(self) -> StreamStateHandle | None:
        with self._busy:
            self._require_open()
            handle = self._stream.close_and_get_handle()
        if self._closed and handle is not None:
            # Closed while it was being finished: nobody will ask for this state.
            _logger.debug("discarding %r, which was finished while its snapshot was cancelled", handle)
            handle.discard_state()
        self._require_open()
        return handle

    def _run(self, action: Callable[[], None]) -> None:
        try:
            with self._busy:
                self._require_open()
                action()
        finally:
            if self._closed:
                self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise CheckpointIOError(
                "the stream was closed while it was written: its snapshot was cancelled or its backend closed. "
                "Nothing of it is left; the next snapshot is written anew."
            )
