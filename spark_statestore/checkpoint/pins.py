"""Which versions of a query's state clean-ups must leave alone, and how clean-ups and pins do not miss each other.

A pin is a file ``_pins/<version>-<name>`` below the state directory of a query. It keeps that version of every
store, with all that it is made of. The name says all that a clean-up needs, so a listing is enough.

A clean-up looks for pins and then deletes; a pin that appears between the two would come too late. So before a
clean-up looks for the first time it leaves a mark ``_pins/keeps-<n>``: from here on, a clean-up under way discards
nothing newer than n versions before the newest one. Whoever pins writes the pin, and then asks which marks there are
and which version is the newest: a version that is not older than the marks allow is out of reach of every clean-up
that did not see the pin. Nothing is written in steady state.
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
    "Pins",
    "is_of_use",
    "look_at_pins",
    "look_before_discarding",
    "name_while_in_use",
    "pins_directory_of",
]

PINS_DIRECTORY: Final = "_pins"
"""Directory of pins, beside the directories of a query's operators."""

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
    """

    versions: dict[str, int]
    keeps: frozenset[int]

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
    start = directory.rstrip("/") + "/"
    for status in files.list_files(directory):
        name = status.path.removeprefix(start)
        if mark := _KEEPS.fullmatch(name):
            keeps.add(int(mark[1]))
        elif pin := _PIN.fullmatch(name):
            versions[name] = int(pin[1])
    return Pins(versions, frozenset(keeps))


def look_before_discarding(files: FileSystem, directory: str | None, keep: int) -> frozenset[int]:
    """The versions that a clean-up must leave alone.

    Parameters
    ----------
    directory
        Of the pins, see `pins_directory_of`.
    keep
        How many versions before the newest one it keeps.

    Raises
    ------
    OSError
        If they cannot be told; then nothing may be discarded.
    """
    if directory is None:
        return frozenset()
    found = look_at_pins(files, directory)
    if not any(known <= keep for known in found.keeps):
        files.make_directory(directory)
        with contextlib.suppress(FileExistsError):
            files.create(join(directory, f"keeps-{keep}"), b"")
        # Whoever saw no mark has written its pin before it looked.
        found = look_at_pins(files, directory)
    return found.pinned
