"""Pins: what keeps the state of one batch from clean-ups, for as long as somebody needs it.

What a pin is, and why a clean-up cannot miss one, is said in `spark_statestore.checkpoint.pins`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from spark_statestore._version import __version__
from spark_statestore.checkpoint.files import FileSystem, join, open_file_system
from spark_statestore.checkpoint.files.failures import failing_to
from spark_statestore.checkpoint.metadata import StoreId
from spark_statestore.checkpoint.pins import (
    PINS_DIRECTORY,
    Pins,
    look_at_pins,
    name_while_in_use,
    say_that_pins_come,
)
from spark_statestore.checkpoint.query.checkpoint import COMMITS, ROLLED_BACK, QueryCheckpoint, StoreVersion
from spark_statestore.checkpoint.query.workers import for_each
from spark_statestore.errors import CheckpointIOError, SavepointError, StateStoreError
from spark_statestore.savepoint.content import make_durable, require_whole
from spark_statestore.savepoint.savepoint import (
    Savepoint,
    is_or_was_savepoint,
    load_savepoint,
    require_savepoint,
)
from spark_statestore.state.handles.file import discard_file

__all__ = ["Pin", "list_pins", "pin", "pin_of", "pinned_while"]


@dataclass(frozen=True, slots=True)
class Pin:
    """Keeps the state that a batch left behind.

    Attributes
    ----------
    files, path
        Where it lies.
    version
        The version of every store that it keeps.
    attempts
        The attempt that wrote each store's version, as found when it was pinned.
    """

    files: FileSystem
    path: str
    version: int
    attempts: dict[StoreId, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.rpartition("/")[2]

    @property
    def url(self) -> str:
        """Its URL."""
        return self.files.url(self.path)

    def holder(self) -> str | None:
        """URL of what needs it, None if it does not say."""
        try:
            return str(json.loads(self.files.read(self.path))["holder"])
        except (OSError, KeyError, TypeError, ValueError):
            return None

    def exists(self) -> bool:
        """Whether it is still there.

        Raises
        ------
        CheckpointIOError
            If that cannot be told.
        """
        with failing_to("look for", self.files, self.path):
            return self.files.exists(self.path)

    def remove(self) -> None:
        """Remove it: from the next clean-up on, what it kept goes the way of all versions.

        Raises
        ------
        CheckpointIOError
            If it is still there.
        """
        discard_file(self.files, self.path)


def pin(checkpoint: QueryCheckpoint, batch: int, name: str, holder: str, *, check: bool = True) -> Pin:
    """Keep the state that a batch left behind.

    The pin is written first. Then it is made sure that it was in time: that the batch is still done, that no
    clean-up which did not see the pin can reach its state, and that all of its files are there.

    Parameters
    ----------
    name
        Tells the pin from others.
    holder
        URL of what needs it, for people.
    check
        Whether to make sure. Without, whoever reads the state finds out.

    Raises
    ------
    SavepointError
        If it came too late. Then it is gone.
    CheckpointError
        If that cannot be told. Then it is gone.
    """
    made = _at(checkpoint.state_url, batch + 1, name)
    is_savepoint = is_or_was_savepoint(checkpoint)
    note = {
        "holder": holder,
        "batch": batch,
        "createdMs": time.time_ns() // 1_000_000,
        "writtenBy": __version__,
    }
    try:
        with failing_to("write the pin", made.files, made.path):
            say_that_pins_come(made.files, made.path.rpartition("/")[0])
            made.files.create(made.path, json.dumps(note).encode())
        if is_savepoint:
            require_savepoint(checkpoint)
        if check:
            made.attempts.update(_made_sure(checkpoint, batch, made))
    except BaseException:
        with contextlib.suppress(CheckpointIOError):
            made.remove()
        raise
    return made


def pin_of(savepoint: Savepoint) -> Pin | None:
    """The pin of a pointer savepoint; None for a canonical one, or one of a query without state."""
    if savepoint.kind == "canonical" or not savepoint.attempts:
        return None
    return _at(savepoint.state_url, savepoint.batch + 1, savepoint.name)


def list_pins(checkpoint: QueryCheckpoint) -> list[Pin]:
    """All pins on a checkpoint's state, oldest version first.

    Raises
    ------
    CheckpointIOError
        If they cannot be listed.
    """
    files, directory = _directory(checkpoint.state_url)
    found = _look(files, directory)
    ordered = sorted(found.versions.items(), key=lambda pin: (pin[1], pin[0]))
    return [Pin(files, join(directory, name), version) for name, version in ordered]


@contextlib.contextmanager
def pinned_while(checkpoint: QueryCheckpoint, batch: int, holder: str) -> Iterator[Pin]:
    """Keep the state of a batch while something is done with it.

    Also a savepoint can be held so: it cannot be disposed of meanwhile. A process that is killed leaves the pin.

    Parameters
    ----------
    holder
        URL of what is being made of it, for people.

    Raises
    ------
    CheckpointIOError
        If the pin cannot be written.
    """
    held = pin(checkpoint, batch, name_while_in_use(), holder, check=False)
    try:
        yield held
    finally:
        # What was made is whole; a pin too many costs space, and is listed.
        with contextlib.suppress(CheckpointIOError):
            held.remove()


def _made_sure(checkpoint: QueryCheckpoint, batch: int, made: Pin) -> dict[StoreId, str]:
    versions = checkpoint.stores(batch)
    pins = _look(made.files, made.path.rpartition("/")[0])
    if made.name not in pins.versions:
        raise SavepointError(
            f"the pin {made.url} is gone again: somebody removed it. Nothing was changed; ask once more."
        )
    if not _is_held_already(made, pins):
        oldest = pins.oldest_safe(_newest_version(checkpoint))
        if made.version < oldest:
            raise SavepointError(
                f"batch {batch} of {checkpoint.url} cannot be pinned: clean-ups may be discarding its state at this "
                f"moment. The query keeps the state of batch {oldest - 1} and later ones. Take the savepoint of one of those; or "
                "a canonical one, which has a copy of the state. Nothing was changed."
            )

    def keep(version: StoreVersion) -> str:
        metadata = require_whole(checkpoint, version)
        make_durable(checkpoint, version, metadata)
        return metadata.attempt

    found = for_each(keep, versions)
    return {version.store: attempt for version, attempt in zip(versions, found, strict=True)}


def _is_held_already(made: Pin, pins: Pins) -> bool:
    """Whether a living savepoint has a pin on the same version, which came in time then."""
    for name, version in pins.versions.items():
        if version == made.version and name != made.name:
            held = Pin(made.files, join(made.path.rpartition("/")[0], name), version)
            try:
                if (holder := held.holder()) and pin_of(load_savepoint(holder)) == held:
                    return True
            except StateStoreError:
                continue
    return False


def _newest_version(checkpoint: QueryCheckpoint) -> int:
    # Also what was rolled back: an executor of that time may still clean up behind it.
    batches = list(checkpoint.batches())
    directory = checkpoint.path(ROLLED_BACK)
    with failing_to("list", checkpoint.files, directory):
        for status in checkpoint.files.list_files(directory):
            *_, log, name = status.path.split("/")
            if log == COMMITS and name.isascii() and name.isdigit():
                batches.append(int(name))
    return max(batches) + 1


def _at(state_url: str, version: int, name: str) -> Pin:
    files, directory = _directory(state_url)
    return Pin(files, join(directory, f"{version}-{name}"), version)


def _directory(state_url: str) -> tuple[FileSystem, str]:
    # A savepoint must not outlive its pin.
    files, state = open_file_system(state_url, fsync=True)
    return files, join(state, PINS_DIRECTORY)


def _look(files: FileSystem, directory: str) -> Pins:
    with failing_to("list the pins in", files, directory):
        return look_at_pins(files, directory)
