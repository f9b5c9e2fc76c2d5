"""Which versions of a query's state clean-ups must leave alone, and how clean-ups and pins do not miss each other.

A pin is a file ``_pins/<version>-<name>`` below the state directory of a query. It keeps that version of every
store, with all that it is made of. The name says all that a clean-up needs, so a listing is enough.

A clean-up looks for pins and then deletes; a pin that appears between the two would come too late. So before a
clean-up looks for the first time it leaves a mark ``_pins/keeps-<n>``: from here on, a clean-up under way discards
nothing newer than n versions before the newest one. Whoever pins writes the pin, and then asks which marks there are
and which version is the newest: a version that is not older than the marks allow is out of reach of every clean-up
that did not see the pin. Nothing is written in steady state.

Nor is anything listed: whoever pins first leaves the file ``_pins/pinned``, which stays. A clean-up that has once
seen a mark of its own, and no pin, asks for that one file. As long as it is missing, a pin is still to come, and
whoever writes it sees the mark.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from dataclasses import dataclass
from typing import Final

from spark_statestore.checkpoint.files.base import FileSystem, join, parent_of
from spark_statestore.checkpoint.metadata.store import StoreId

__all__ = [
    "PINS_DIRECTORY",
    "CleanupWatch",
    "Pins",
    "is_of_use",
    "look_at_pins",
    "name_while_in_use",
    "pins_directory_of",
    "say_that_pins_come",
]

PINS_DIRECTORY: Final = "_pins"
"""Directory of pins, beside the directories of a query's operators."""

_PINNED: Final = "pinned"
_PIN: Final = re.compile(r"([0-9]+)-(.+)")
_KEEPS: Final = re.compile(r"keeps-([0-9]+)")
_IN_USE: Final = re.compile(r"[0-9]+-in-use-[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Pins:
    """What lies in a directory of pins.

    Attributes
    ----------
    versions
        The version that each pin keeps, by the file's name.
    keeps
        How many versions before the newest one the clean-ups of this query keep: one number for each way in which
        it was ever run.
    ever
        Whether there ever was a pin.
    """

    versions: dict[str, int]
    keeps: frozenset[int]
    ever: bool

    @property
    def pinned(self) -> frozenset[int]:
        """The versions that pins keep."""
        return frozenset(self.versions.values())

    def oldest_safe(self, newest: int) -> int:
        """The oldest version that no clean-up discards which began before these pins were looked at.

        Parameters
        ----------
        newest
            The newest version of the query, looked up after the pin was written.
        """
        return newest - min(self.keeps) if self.keeps else 0


def pins_directory_of(store_directory: str, store: StoreId) -> str | None:
    """Where the pins of a store's query are; None for a store that does not lie in a query's state directory."""
    state = store_directory.rstrip("/")
    for name in reversed(store.directories):
        if state.rpartition("/")[2] != name:
            return None
        state = parent_of(state)
    return join(state, PINS_DIRECTORY) if state else None


def name_while_in_use() -> str:
    """A new name for the pin of somebody who is at work with a version, and removes the pin at the end."""
    return f"in-use-{secrets.token_hex(6)}"


def is_of_use(pin: str) -> bool:
    """Whether the file of a pin has such a name."""
    return _IN_USE.fullmatch(pin) is not None


def look_at_pins(files: FileSystem, directory: str) -> Pins:
    """See which pins and marks there are.

    Raises
    ------
    OSError
        If the directory cannot be listed.
    """
    versions = {}
    keeps = set()
    ever = False
    start = directory.rstrip("/") + "/"
    for status in files.list_files(directory):
        name = status.path.removeprefix(start)
        if mark := _KEEPS.fullmatch(name):
            keeps.add(int(mark[1]))
        elif pin := _PIN.fullmatch(name):
            versions[name] = int(pin[1])
        elif name == _PINNED:
            ever = True
    return Pins(versions, frozenset(keeps), ever or bool(versions))


def say_that_pins_come(files: FileSystem, directory: str) -> None:
    """Have every clean-up from now on look for pins; to be called before one is written.

    Raises
    ------
    OSError
        If that cannot be said; then no pin may be written.
    """
    files.make_directory(directory)
    _create(files, join(directory, _PINNED), b"There was a pin here, and may be more.\n")


class CleanupWatch:
    """What the clean-ups of one instance of a store know of the pins on its query.

    Parameters
    ----------
    directory
        Of the pins, see `pins_directory_of`.
    """

    def __init__(self, files: FileSystem, directory: str | None) -> None:
        self._files = files
        self._directory = directory
        self._marked: int | None = None
        self._ever = False

    def look(self, keep: int) -> frozenset[int]:
        """The versions that a clean-up must leave alone.

        Parameters
        ----------
        keep
            How many versions before the newest one it keeps.

        Raises
        ------
        OSError
            If they cannot be told; then nothing may be discarded.
        """
        if self._directory is None:
            return frozenset()
        if self._marked is not None and self._marked <= keep and not self._ever:
            self._ever = self._has(join(self._directory, _PINNED))
            if not self._ever:
                return frozenset()
        found = look_at_pins(self._files, self._directory)
        if not any(known <= keep for known in found.keeps):
            self._files.make_directory(self._directory)
            _create(self._files, join(self._directory, f"keeps-{keep}"), b"")
            # Whoever saw no mark has written its pin before it looked.
            found = look_at_pins(self._files, self._directory)
        self._marked = min(found.keeps, default=None)
        self._ever = found.ever
        return found.pinned

    def _has(self, path: str) -> bool:
        # Asking an object store whether a file exists may list what its name starts; a part of one is read at once.
        try:
            self._files.read(path, 0, 1)
        except FileNotFoundError:
            return False
        return True


def _create(files: FileSystem, path: str, data: bytes) -> None:
    with contextlib.suppress(FileExistsError):
        files.create(path, data)
