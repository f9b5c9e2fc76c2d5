"""Creation of a savepoint of a committed batch."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from spark_statestore.errors import CheckpointError, CheckpointIOError, IllegalStateError, SavepointError
from spark_statestore.files import FileSystem, join, open_file_system
from spark_statestore.options import check
from spark_statestore.query.parallel import Progress
from spark_statestore.query.query_checkpoint import STATE, QueryCheckpoint
from spark_statestore.query.savepoint import Kind, Savepoint, new_name
from spark_statestore.savepoints.copy import CheckpointCopy
from spark_statestore.savepoints.savepoint_holds import held_while, hold
from spark_statestore.savepoints.savepoint_store import SavepointStore
from spark_statestore.storage import METADATA_FILE_NAME, encode_path_as_reference
from spark_statestore.storage.file_handles import discard_file

_logger = logging.getLogger(__name__)


def create_savepoint(
    checkpoint: QueryCheckpoint,
    store: SavepointStore,
    kind: Kind,
    batch: int | None = None,
    *,
    checkpoints_dir: str | None = None,
    progress: Progress | None = None,
) -> Savepoint:
    """Write a savepoint of a batch, by default the newest committed one, and publish it.

    The query may be running. The savepoint records the query's option `checkpoints_dir`. `progress` is called
    with the number of stores that are copied and their total. If it fails, no files of it remain.
    """
    if checkpoints_dir is not None:
        check("checkpointsDir", checkpoints_dir)
    number = checkpoint.require_batch(batch)
    # Durable when this returns.
    files, root = open_file_system(store.target, fsync=True)
    name, attempt_id = new_name(checkpoint.query_id)
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
        attempt_id=attempt_id,
        checkpoints_dir=checkpoints_dir,
        partitions=checkpoint.offsets(number).shuffle_partitions,
    )
    writer = _SavepointWriter(checkpoint, savepoint, store, files, directory, progress)
    try:
        return writer.write_pointer() if kind == "pointer" else writer.write_copy()
    except (CheckpointError, IllegalStateError, OSError) as error:
        raise SavepointError(
            f"there is no {kind} savepoint of batch {number} of {checkpoint.url}: {error}"
        ) from error


@dataclass(frozen=True, slots=True)
class _SavepointWriter:
    checkpoint: QueryCheckpoint
    savepoint: Savepoint
    store: SavepointStore
    files: FileSystem
    directory: str
    progress: Progress | None

    def write_pointer(self) -> Savepoint:
        """Hold the state, and write a pointer to it."""
        if not self.has_state():
            return self.write(self.savepoint)
        savepoint = self.savepoint
        state_hold = hold(self.checkpoint, savepoint.batch, savepoint.name, savepoint.path)
        try:
            result = self.write(replace(savepoint, attempts=state_hold.attempts))
            if not state_hold.exists():
                # gc removes holds of dead processes.
                raise SavepointError(
                    f"its hold {state_hold.url} was removed while it was written. Try again."
                )
        except BaseException:
            # An existing savepoint needs its hold.
            if self.remove():
                with contextlib.suppress(CheckpointIOError):
                    state_hold.remove()
            raise
        return result

    def write_copy(self) -> Savepoint:
        """Write a copy of the state."""
        with held_if_possible(self.checkpoint, self.savepoint.batch, self.savepoint.path):
            try:
                return self.write(self.savepoint)
            except BaseException:
                self.remove()
                raise

    def has_state(self) -> bool:
        return bool(self.checkpoint.operators(self.savepoint.batch))

    def write(self, savepoint: Savepoint) -> Savepoint:
        copy = CheckpointCopy(
            self.checkpoint,
            savepoint.batch,
            encode_path_as_reference(savepoint.path),
            query_id=savepoint.query_id,
            fsync=True,
            progress=self.progress,
        )
        # Without the stores, the commit log has the attempts of the source.
        copy.write(state=savepoint.kind == "canonical")
        copy.write_logs()
        _require_held(savepoint, copy)
        copy.publish()
        savepoint = replace(savepoint, partitions=copy.shuffle_partitions)
        return replace(savepoint, path=self.store.put_state(savepoint))

    def remove(self) -> bool:
        """Remove the written files, and return True if the metadata is removed."""
        gone = False
        try:
            discard_file(self.files, join(self.directory, METADATA_FILE_NAME))
            gone = True
            self.files.delete_directory(self.directory, recursive=True)
        except OSError as error:
            _logger.warning("files of the failed savepoint %s remain: %s", self.savepoint.path, error)
        return gone


def _require_held(savepoint: Savepoint, copy: CheckpointCopy) -> None:
    """Raise if the commit log of a pointer savepoint names other attempts than those that it holds."""
    if savepoint.kind != "pointer" or copy.state_ids is None:
        return
    named = {
        (operator, attempt)
        for operator, partitions in copy.state_ids.items()
        for attempt in itertools.chain.from_iterable(partitions)
    }
    if named != {(store.operator, attempt) for store, attempt in savepoint.attempts.items()}:
        raise SavepointError(
            f"the state of the batch in {savepoint.source} was replaced after it was held: another process "
            "rescales the query in place, or writes its state. Let it end, then try again."
        )


@contextlib.contextmanager
def held_if_possible(checkpoint: QueryCheckpoint, batch: int, holder: str) -> Iterator[None]:
    """Hold the state of a batch while it is copied; without a hold, the copy fails if a file is removed."""
    with contextlib.ExitStack() as stack:
        if checkpoint.operators(batch):
            try:
                stack.enter_context(held_while(checkpoint, batch, holder))
            except CheckpointIOError as error:
                _logger.warning("%s is copied without a hold: %s", checkpoint.url, error)
        yield
