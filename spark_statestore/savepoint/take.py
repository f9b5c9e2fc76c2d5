"""Taking a savepoint of a batch that is done."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from spark_statestore.checkpoint.files import FileSystem, join, open_file_system
from spark_statestore.checkpoint.files.failures import failing_to
from spark_statestore.checkpoint.query.checkpoint import STATE, QueryCheckpoint
from spark_statestore.checkpoint.storage import METADATA_FILE_NAME
from spark_statestore.errors import CheckpointError, CheckpointIOError, SavepointError
from spark_statestore.savepoint.assemble import assemble
from spark_statestore.savepoint.pins import pin, pinned_while
from spark_statestore.savepoint.savepoint import (
    Kind,
    Savepoint,
    encode_savepoint,
    new_name,
)
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
    # It is what its user falls back on: when this returns, it survives a power failure too.
    files, root = open_file_system(target, fsync=True)
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
    taking = _Taking(checkpoint, savepoint, files, directory)
    try:
        return taking.point() if kind == "pointer" else taking.copy()
    except (CheckpointError, OSError) as error:
        raise SavepointError(
            f"there is no {kind} savepoint of batch {number} of {checkpoint.url}: {error}"
        ) from error


@dataclass(frozen=True, slots=True)
class _Taking:
    checkpoint: QueryCheckpoint
    savepoint: Savepoint
    files: FileSystem
    directory: str

    def point(self) -> Savepoint:
        """Pin the state, and write what points at it."""
        if not self.has_state():
            return self.write(self.savepoint)
        savepoint = self.savepoint
        made = pin(self.checkpoint, savepoint.batch, savepoint.name, savepoint.path)
        try:
            done = self.write(replace(savepoint, attempts=made.attempts))
            if not made.exists():
                # Taken for one that a dead process left.
                raise SavepointError(f"somebody removed its pin {made.url} while it was written. Ask again.")
        except BaseException:
            # Only if it surely does not exist: else it would be one whose state goes.
            if self.remove():
                with contextlib.suppress(CheckpointIOError):
                    made.remove()
            raise
        return done

    def copy(self) -> Savepoint:
        """Write all of it."""
        with kept_if_possible(self.checkpoint, self.savepoint.batch, self.savepoint.path):
            try:
                return self.write(self.savepoint)
            except BaseException:
                self.remove()
                raise

    def has_state(self) -> bool:
        return bool(self.checkpoint.operators(self.savepoint.batch))

    def write(self, savepoint: Savepoint) -> Savepoint:
        assemble(
            self.checkpoint,
            savepoint.batch,
            savepoint.path,
            query_id=savepoint.query_id,
            state=savepoint.kind == "canonical",
            fsync=True,
        )
        path = join(self.directory, METADATA_FILE_NAME)
        with failing_to("write", self.files, path):
            # This makes it exist.
            self.files.create(path, encode_savepoint(savepoint))
        return savepoint

    def remove(self) -> bool:
        """Remove what was written; whether it surely does not exist then."""
        gone = False
        try:
            discard_file(self.files, join(self.directory, METADATA_FILE_NAME))
            gone = True
            self.files.delete_directory(self.directory, recursive=True)
        except OSError as error:
            _logger.warning("%s, a savepoint that failed, is left behind: %s", self.savepoint.path, error)
        return gone


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
