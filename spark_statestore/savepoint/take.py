"""Taking a savepoint of a batch that is done."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import replace

from spark_statestore.checkpoint.files import FileSystem, join, open_file_system
from spark_statestore.checkpoint.files.failures import failing_to
from spark_statestore.checkpoint.query.checkpoint import STATE, QueryCheckpoint
from spark_statestore.checkpoint.storage import METADATA_FILE_NAME
from spark_statestore.errors import CheckpointError, CheckpointIOError, SavepointError
from spark_statestore.savepoint.assemble import assemble
from spark_statestore.savepoint.pins import pin, pinned_while
from spark_statestore.savepoint.savepoint import Kind, Savepoint, encode_savepoint, new_name
from spark_statestore.state.handles.file import discard_file

__all__ = ["kept_if_possible", "take"]

_logger = logging.getLogger(__name__)


def take(
    checkpoint: QueryCheckpoint,
    target: str,
    kind: Kind,
    batch: int | None = None,
    *,
    checkpoints_dir: str | None = None,
) -> Savepoint:
    """Take a savepoint of a batch, while the query runs or not.

    Parameters
    ----------
    target
        URL of the directory in which it gets a directory of its own.
    batch
        By default the newest one that is done.
    checkpoints_dir
        The option of the query, to be noted.

    Raises
    ------
    CheckpointNotFoundError
        If there is no such batch.
    SavepointError
        If it could not be taken. Nothing is left of it then.
    """
    number = checkpoint.require_batch(batch)
    files, root = open_file_system(target)
    name, attempt = new_name(checkpoint.query_id)
    directory = join(root, name)
    url = files.url(directory)
    savepoint = Savepoint(
        path=url,
        kind=kind,
        query_id=checkpoint.query_id,
        batch=number,
        created_ms=time.time_ns() // 1_000_000,
        source=checkpoint.url,
        state_url=checkpoint.state_url if kind == "pointer" else join(url, STATE),
        name=name,
        attempt=attempt,
        checkpoints_dir=checkpoints_dir,
        partitions=checkpoint.offsets(number).shuffle_partitions,
    )
    try:
        return (_point if kind == "pointer" else _copy)(checkpoint, savepoint, files, directory)
    except CheckpointError as error:
        if isinstance(error, SavepointError):
            raise
        raise SavepointError(
            f"there is no {kind} savepoint of batch {number} of {checkpoint.url}: {error}"
        ) from error


def _point(checkpoint: QueryCheckpoint, savepoint: Savepoint, files: FileSystem, directory: str) -> Savepoint:
    if not checkpoint.operators(savepoint.batch):
        return _write(checkpoint, savepoint, files, directory)
    made = pin(checkpoint, savepoint.batch, savepoint.name, savepoint.path)
    try:
        done = _write(checkpoint, replace(savepoint, attempts=made.attempts), files, directory)
        if not made.exists():
            # Taken for one that a dead process left.
            _remove(files, directory)
            raise SavepointError(
                f"there is no pointer savepoint of batch {savepoint.batch} of {checkpoint.url}: somebody removed its "
                f"pin {made.url} while it was written. Nothing is left of it; ask again."
            )
    except BaseException:
        with contextlib.suppress(CheckpointIOError):
            made.remove()
        raise
    return done


def _copy(checkpoint: QueryCheckpoint, savepoint: Savepoint, files: FileSystem, directory: str) -> Savepoint:
    with kept_if_possible(checkpoint, savepoint.batch, savepoint.path):
        return _write(checkpoint, savepoint, files, directory)


def _write(checkpoint: QueryCheckpoint, savepoint: Savepoint, files: FileSystem, directory: str) -> Savepoint:
    try:
        assemble(
            checkpoint,
            savepoint.batch,
            savepoint.path,
            query_id=savepoint.query_id,
            state=savepoint.kind == "canonical",
        )
        path = join(directory, METADATA_FILE_NAME)
        with failing_to("write", files, path):
            # This makes it exist.
            files.create(path, encode_savepoint(savepoint))
    except BaseException:
        _remove(files, directory)
        raise
    return savepoint


@contextlib.contextmanager
def kept_if_possible(checkpoint: QueryCheckpoint, batch: int, holder: str) -> Iterator[None]:
    """Keep the state of a batch while it is copied. If that cannot be, the copy fails once something is gone.

    Parameters
    ----------
    holder
        URL of what is being made of it, for people.
    """
    with contextlib.ExitStack() as held:
        if checkpoint.operators(batch):
            try:
                held.enter_context(pinned_while(checkpoint, batch, holder))
            except CheckpointIOError as error:
                _logger.warning("%s is copied without a pin: %s", checkpoint.url, error)
        yield


def _remove(files: FileSystem, directory: str) -> None:
    # First what would make it look whole.
    try:
        discard_file(files, join(directory, METADATA_FILE_NAME))
        files.delete_directory(directory, recursive=True)
    except OSError as error:
        _logger.warning("%s, a savepoint that failed, is left behind: %s", files.url(directory), error)
