"""Names of directories that survive a loss of power."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from spark_statestore.checkpoint.files.base import parent_of

__all__ = ["DurableNames"]

# So that a process that sees ever new stores does not remember them all.
_MOST = 4096


class DurableNames:
    """Syncs what names a directory: its parent, that one's parent and so on.

    Also of a directory that is there already: whoever made it may have been killed before its name was synced,
    and is not waited for. What is above is synced once.

    Parameters
    ----------
    sync
        Syncs one directory.
    """

    def __init__(self, sync: Callable[[str], None]) -> None:
        self._sync = sync
        self._above: set[str] = set()
        self._expected: set[str] = set()

    def make_durable(self, directory: str, *, is_new: bool) -> None:
        """Sync what names a directory.

        Parameters
        ----------
        is_new
            Whether it was just made here.

        Raises
        ------
        OSError
            If it cannot be synced.
        """
        if directory in self._expected:
            self._expected.discard(directory)
            if not is_new:
                return
        parent = parent_of(directory) or "/"
        if is_new:
            self._sync(parent)
        else:
            # One that may not be read was not made by us.
            with contextlib.suppress(PermissionError):
                self._sync(parent)
        if parent not in self._above:
            if not os.path.ismount(parent):
                self.make_durable(parent, is_new=False)
            if len(self._above) >= _MOST:
                self._above.clear()
            self._above.add(parent)

    def expect(self, directory: str) -> None:
        """Note that a directory was made durable, and is asked for once more."""
        if len(self._expected) >= _MOST:
            self._expected.clear()
        self._expected.add(directory)
