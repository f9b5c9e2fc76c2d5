"""Retention holds are files that exclude versions of a query's state from cleanups.

The file ``_holds/<version>-<name>`` in a query's state directory holds that version of every store, with all
its streams. Its name contains all that a cleanup needs, so a listing is enough.

A cleanup lists the holds before it deletes, and would miss a hold that is written in between. Therefore it
first publishes how far it reaches: the horizon marker ``_holds/horizon-<n>`` means that cleanups keep the
newest version and the n versions before it. A holder writes its hold, then reads the markers and the newest
version. A cleanup that missed the hold had published its marker before, so a version within all horizons is
safe from it.

To save the listing while there are no holds, the first holder creates ``_holds/held``, which is never
removed. A cleanup whose marker exists and that has seen no hold reads only that file: while it is missing, no
hold was written, and the next holder will read the marker. In steady state nothing is written or listed.

A write in place holds its version from collections (`gc`) alone, and does not create that file: cleanups
retain the version while it is written, and need not retain it longer when the process was killed.

A marker would exclude older versions for ever, also once the query retains more. So it counts for a week
only, by the storage's clock, and a cleanup that relies on one for more than a day writes its own again.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_statestore.files.base import FileSystem, has_file, join
from spark_statestore.storage.file_handles import discard_file
from spark_statestore.store.metadata import StoreId, state_directory_of

HOLDS_DIRECTORY: Final = "_holds"
"""Directory of holds, beside the directories of a query's operators."""

_HELD: Final = "held"
_HOLD: Final = re.compile(r"([0-9]+)-(.+)")
_HORIZON: Final = re.compile(r"horizon-([0-9]+)")
_RENEWED_SECONDS: Final = 24 * 3600.0
# The difference bears cleanups that take long, and a clock of this machine that is days behind the storage's.
_VALID_SECONDS: Final = 7 * _RENEWED_SECONDS

_TEMPORARY: Final = re.compile(r"[0-9]+-in-(use|place)-[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Holds:
    """The content of a directory of holds.

    Attributes
    ----------
    versions, hold_times
        The held versions, and the modification times of the holds, by name of the file.
    horizons
        The horizon markers, one for each number of versions that the query has been configured to retain,
        with their modification times; None where the storage has none.
    has_been_used
        True if there ever was a hold.
    """

    versions: dict[str, int]
    horizons: Mapping[int, float | None]
    has_been_used: bool
    hold_times: Mapping[str, float | None]

    @property
    def held_versions(self) -> frozenset[int]:
        """The held versions."""
        return frozenset(self.versions.values())

    @property
    def versions_for_cleanups(self) -> frozenset[int]:
        """The versions that cleanups keep: those of savepoints and copies."""
        return frozenset(version for name, version in self.versions.items() if not is_in_place_hold(name))

    @property
    def versions_in_use(self) -> frozenset[int]:
        """The versions of temporary holds, which an operation reads or writes."""
        return frozenset(version for name, version in self.versions.items() if is_temporary_hold(name))

    def oldest_safe(self, newest: int, hold: str) -> int:
        """Return the oldest version within all horizons; `newest` was read after the hold was written."""
        now = self.hold_times.get(hold)
        valid = [
            horizon
            for horizon, modified in self.horizons.items()
            if now is None or modified is None or now - modified < _VALID_SECONDS
        ]
        return newest - min(valid) if valid else 0


def holds_directory_of(store_directory: str, store: StoreId) -> str | None:
    """Return the directory of holds of a store's query.

    Return None for a store outside a query's state directory.
    """
    state = state_directory_of(store_directory, store)
    return None if state is None else join(state, HOLDS_DIRECTORY)


def temporary_hold_name() -> str:
    """Return a new name of a temporary hold.

    Such a hold is removed at the end of the operation that reads or writes the version.
    """
    return f"in-use-{secrets.token_hex(6)}"


def in_place_hold_name() -> str:
    """Return a new name of a temporary hold on what is written in place."""
    return f"in-place-{secrets.token_hex(6)}"


def is_temporary_hold(hold: str) -> bool:
    """Return True if a file name is that of a temporary hold."""
    return _TEMPORARY.fullmatch(hold) is not None


def is_in_place_hold(hold: str) -> bool:
    """Return True if a file name is that of a temporary hold on what is written in place."""
    match = _TEMPORARY.fullmatch(hold)
    return match is not None and match[1] == "place"


def read_holds(files: FileSystem, directory: str) -> Holds:
    """Read the holds and horizon markers of a directory."""
    versions = {}
    hold_times = {}
    horizons = {}
    has_been_used = False
    start = directory.rstrip("/") + "/"
    for status in files.list_files(directory):
        name = status.path.removeprefix(start)
        if marker := _HORIZON.fullmatch(name):
            horizons[int(marker[1])] = status.modified
        elif hold := _HOLD.fullmatch(name):
            versions[name] = int(hold[1])
            hold_times[name] = status.modified
        elif name == _HELD:
            has_been_used = True
    has_been_used = has_been_used or not all(map(is_in_place_hold, versions))
    return Holds(versions, horizons, has_been_used, hold_times)


def announce_holds(files: FileSystem, directory: str) -> None:
    """Create the file that makes every later cleanup list the holds, before one is written.

    No hold may be written if it fails.
    """
    files.make_directory(directory)
    _create(files, join(directory, _HELD), b"Holds have been used here: every cleanup lists them.\n")


def withdraw_announcement(files: FileSystem, directory: str) -> None:
    """Remove that file from the state of a savepoint that does not exist any more: no cleanup reads it."""
    discard_file(files, join(directory, _HELD))


class CleanupHolds:
    """The holds of a query, as the cleanups of one instance of a store read them.

    See `holds_directory_of`.
    """

    def __init__(self, files: FileSystem, directory: str | None) -> None:
        self._files = files
        self._directory = directory
        self._horizon: int | None = None
        self._has_been_used = False
        self._looked = 0.0

    def versions_to_keep(self, horizon: int) -> frozenset[int]:
        """Return the held versions, after publishing the cleanup's horizon.

        The horizon is how many versions before the newest one the cleanup keeps.

        If it raises an error, nothing may be discarded.
        """
        if self._directory is None:
            return frozenset()
        is_published = self._horizon is not None and self._horizon <= horizon
        is_recent = time.monotonic() - self._looked < _RENEWED_SECONDS
        if is_published and is_recent and not self._has_been_used:
            self._has_been_used = has_file(self._files, join(self._directory, _HELD))
            if not self._has_been_used:
                return frozenset()
        looked = time.monotonic()
        holds = read_holds(self._files, self._directory)
        if not any(published <= horizon for published in _recent(holds)):
            self._files.make_directory(self._directory)
            marker = join(self._directory, f"horizon-{horizon}")
            if horizon in holds.horizons:
                self._files.replace(marker, b"")
            else:
                _create(self._files, marker, b"")
            # A holder that did not read this marker has written its hold before this listing.
            holds = read_holds(self._files, self._directory)
        self._looked = looked
        self._horizon = min(_recent(holds), default=None)
        self._has_been_used = holds.has_been_used
        return holds.versions_for_cleanups


def _recent(holds: Holds) -> list[int]:
    """Return the horizons whose markers need not be written again."""
    now = time.time()
    return [
        horizon
        for horizon, modified in holds.horizons.items()
        if modified is None or now - modified < _RENEWED_SECONDS
    ]


def _create(files: FileSystem, path: str, data: bytes) -> None:
    with contextlib.suppress(FileExistsError):
        files.create(path, data)
