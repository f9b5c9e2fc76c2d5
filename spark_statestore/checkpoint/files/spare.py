"""A file that has no name yet and waits to be written."""

from __future__ import annotations

import os
import threading
import weakref

__all__ = ["SpareFile"]

# Of all file systems of a process together: each takes a descriptor.
_MOST = 64
_unused = threading.BoundedSemaphore(_MOST)


class SpareFile:
    """At most one open file without a name, which is nowhere if it is never used.

    To make a file takes ext4 ten times as long as to write it where many were removed within the last minutes: it
    passes over their inodes one by one. So the next file is made while nobody waits for it.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[int, int]] = []
        weakref.finalize(self, _close, self._kept)

    def make(self, directory: str) -> None:
        """Make the file in a directory, if there is none already and not too many elsewhere.

        Raises
        ------
        OSError
            If it cannot be made.
        """
        if self._kept or not _unused.acquire(blocking=False):
            return
        try:
            self._kept.append((os.open(directory, os.O_TMPFILE | os.O_WRONLY, 0o644), os.getpid()))
        except BaseException:
            _unused.release()
            raise

    def take(self) -> int | None:
        """The descriptor of the file, which is the caller's then; None if there is none."""
        try:
            descriptor, owner = self._kept.pop()
        except IndexError:
            return None
        _unused.release()
        if owner != os.getpid():
            # The process was forked: the file is the other one's, too.
            os.close(descriptor)
            return None
        return descriptor


def _close(kept: list[tuple[int, int]]) -> None:
    while kept:
        os.close(kept.pop()[0])
        _unused.release()
