"""The checksum of a stream, computed while the stream is written."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

__all__ = ["RunningChecksum"]

# Less is summed up sooner than another thread takes it over.
_WORTH_A_THREAD = 256 * 1024


class RunningChecksum:
    """CRC-32 of everything so far.

    Summing up takes about as long as handing the same bytes to the page cache, and both leave
    Python's lock: large pieces are summed up by another thread while they are written.
    """

    def __init__(self) -> None:
        self.value = 0

    def update(self, parts: Sequence[bytes], meanwhile: Callable[[], None]) -> None:
        """Add bytes, and do something with them at the same time.

        Whatever `meanwhile` raises is raised when the bytes are not in use any more.
        """
        if sum(map(len, parts)) < _WORTH_A_THREAD:
            meanwhile()
            self.value = _crc32(parts, self.value)
            return
        summed = _workers().submit(_crc32, parts, self.value)
        try:
            meanwhile()
        finally:
            self.value = summed.result()


def _crc32(parts: Sequence[bytes], value: int) -> int:
    for part in parts:
        value = zlib.crc32(part, value)
    return value


@cache
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="checksum")


if hasattr(os, "register_at_fork"):
    # A child process has none of the threads.
    os.register_at_fork(after_in_child=_workers.cache_clear)
