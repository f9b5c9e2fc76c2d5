"""Disposing of a savepoint: first what makes it exist, then its state or its pin, then its place."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Final

from spark_statestore.checkpoint.files import FileSystem, join
from spark_statestore.checkpoint.files.failures import failing_to
from spark_statestore.checkpoint.query.checkpoint import COMMITS, METADATA, OFFSETS, SOURCES, STATE
from spark_statestore.checkpoint.storage import METADATA_FILE_NAME
from spark_statestore.errors import CheckpointIOError, IllegalStateError, SavepointNotFoundError
from spark_statestore.savepoint.pins import list_pins, pin_of
from spark_statestore.savepoint.savepoint import (
    BEING_DISPOSED,
    Savepoint,
    decode_savepoint,
    encode_savepoint,
    load_savepoint,
    locate,
)
from spark_statestore.state.handles.file import discard_file
from spark_statestore.state.objects import try_all
from spark_statestore.state.operator.query import OPERATOR_STATE_DIR

__all__ = ["dispose_savepoint"]

_logger = logging.getLogger(__name__)

# In the order in which it goes: first what a checkpoint is known by, so that half of one is not taken for a query
# without state. Whatever else lies there is not this package's.
_OWN: Final = (METADATA, COMMITS, OFFSETS, STATE, SOURCES, OPERATOR_STATE_DIR)


def dispose_savepoint(path: str, *, dry_run: bool = False) -> list[str]:
    """Remove a savepoint: its metadata first, so that it exists no more, then its state or its pin, then its place.

    The state that a pointer savepoint pinned goes with the next clean-up, if nobody else needs it. One that
    was cut short can be asked for again.

    Parameters
    ----------
    path
        URL of the savepoint's directory, or of the file ``_metadata`` in it.
    dry_run
        Say what would be removed, and remove nothing.

    Returns
    -------
    list of str
        URLs of what was removed, in that order.

    Raises
    ------
    SavepointNotFoundError
        If there is no savepoint.
    IllegalStateError
        If others need it: pointer savepoints that were taken of it, or what is just being made of it.
    CheckpointIOError
        If something is left; ask again then.
    """
    files, directory = locate(path, fsync=True)
    savepoint = _find(path, files, directory)
    _require_unneeded(savepoint)
    metadata = join(directory, METADATA_FILE_NAME)
    pin = pin_of(savepoint)
    own = list(_own_files(files, directory))
    removed = [files.url(metadata), *([pin.url] if pin else []), *map(files.url, own)]
    if dry_run:
        return removed
    mark = join(directory, BEING_DISPOSED)
    _write(files, mark, encode_savepoint(savepoint))
    discard_file(files, metadata)
    with failing_to("sync", files, directory):
        # After a loss of power it must not be there again without what goes next.
        files.sync_directory(directory)
    try:
        # Whoever began to need it after the first look now finds no metadata, or is found here.
        _require_unneeded(savepoint)
    except IllegalStateError:
        _write(files, metadata, encode_savepoint(savepoint))
        discard_file(files, mark)
        raise
    try:
        try_all([*([pin.remove] if pin else []), *(partial(discard_file, files, file) for file in own)])
        # Directories, where there are any. Whatever came meanwhile is not known here.
        for name in _OWN:
            files.delete_directory(join(directory, name), recursive=True)
        discard_file(files, mark)
    except OSError as error:
        raise CheckpointIOError(
            f"{savepoint} exists no more, and something of it is left: {error}. Dispose of it again."
        ) from error
    try:
        files.delete_directory(directory)
    except OSError as error:
        _logger.warning("%s is left, with what is not of the savepoint: %s", files.url(directory), error)
    return removed


def _find(path: str, files: FileSystem, directory: str) -> Savepoint:
    try:
        return load_savepoint(path)
    except SavepointNotFoundError:
        mark = join(directory, BEING_DISPOSED)
        with failing_to("look for", files, mark):
            begun = files.exists(mark)
        if not begun:
            raise
        with failing_to("read", files, mark):
            data = files.read(mark)
        return decode_savepoint(data, files.url(directory), files.url(mark))


def _write(files: FileSystem, path: str, data: bytes) -> None:
    with failing_to("write", files, path):
        try:
            files.create(path, data)
        except FileExistsError:
            # By an attempt that was cut short, where files do not appear whole perhaps a part.
            if files.read(path) != data:
                files.replace(path, data)


def _require_unneeded(savepoint: Savepoint) -> None:
    # The state of a pointer lies elsewhere, and who pinned it there does not need the savepoint.
    if savepoint.kind == "pointer":
        return
    pins = list_pins(savepoint.checkpoint())
    if pins:
        needed = ", ".join(f"{pin.holder() or 'somebody unknown'} (pin {pin.url})" for pin in pins)
        raise IllegalStateError(
            f"{savepoint} is needed by {needed}. Dispose of those first; delete a pin by hand only if what made it "
            "is gone. Nothing was removed."
        )


def _own_files(files: FileSystem, directory: str) -> Iterator[str]:
    with failing_to("list", files, directory):
        present = sorted(status.path for status in files.list_files(directory))
    start = directory + "/"
    for own in _OWN:
        yield from (path for path in present if path.removeprefix(start).partition("/")[0] == own)
