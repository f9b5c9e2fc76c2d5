"""What one store has in a version: read out of a checkpoint, and written as a version of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_statestore.checkpoint.files import LocalFileSystem, join, open_file_system, parent_of
from spark_statestore.checkpoint.files.failures import failing_to
from spark_statestore.checkpoint.metadata import CheckpointMetadata, NamedState, StoreId
from spark_statestore.checkpoint.query.checkpoint import QueryCheckpoint, StoreVersion
from spark_statestore.checkpoint.storage import METADATA_FILE_NAME, CheckpointName
from spark_statestore.checkpoint.versions import VersionStore
from spark_statestore.errors import CheckpointIOError, CorruptCheckpointError
from spark_statestore.state.changes import APPEND, CHANGE_SCHEMA, PUT
from spark_statestore.state.fold import fold, numbered
from spark_statestore.state.handles import FileStateHandle, SegmentFileStateHandle

__all__ = ["StoreContent", "make_durable", "read_store", "require_whole", "write_store"]

_BATCH_ROWS = 65_536


@dataclass(frozen=True)
class StoreContent:
    """What one store has.

    Attributes
    ----------
    store
        The store.
    states
        Its column families. Their numbers of rows and values are for information only:
        `write_store` counts.
    rows
        Gives the rows, again with every call: the name of a state and a table of
        `spark_statestore.state.fold.ROW_SCHEMA`. A state may have several tables, or none if it has
        no rows; the values of a key are in one table, in their order.
    """

    store: StoreId
    states: tuple[NamedState, ...]
    rows: Callable[[], Iterator[tuple[str, pa.Table]]]


def read_store(checkpoint: QueryCheckpoint, version: StoreVersion) -> StoreContent:
    """What a store has in a version. The rows are read, and checked, when they are asked for.

    Raises
    ------
    CheckpointError
        If there is no such version or it cannot be read, see `VersionStore.load`. Also while rows
        are read.
    """
    versions = checkpoint.open(version.store)
    metadata = versions.metadata(version.name, version.attempt)

    def rows() -> Iterator[tuple[str, pa.Table]]:
        return _rows(versions, version.name, metadata)

    return StoreContent(version.store, metadata.states, rows)


def require_whole(checkpoint: QueryCheckpoint, version: StoreVersion) -> CheckpointMetadata:
    """The metadata of a store's version, after a look whether every stream that it needs is there.

    Raises
    ------
    CorruptCheckpointError
        If one is missing.
    CheckpointError
        If there is no such version or it cannot be read, see `VersionStore.load`.
    """
    versions = checkpoint.open(version.store)
    metadata = versions.metadata(version.name, version.attempt)
    for entry in metadata.handle:
        stream = entry.state.delegate_state_handle
        try:
            if isinstance(stream, FileStateHandle):
                stream.files.size(stream.path)
            else:
                # It lies inside of another version's metadata, perhaps of an attempt that was replaced.
                stream.open_input_stream().close()
        except FileNotFoundError as error:
            raise CorruptCheckpointError(
                f"{versions.where(version.name)} needs the state stream {stream.stream_state_handle_id}, which is "
                "missing. Take another batch; nothing was changed."
            ) from error
        except OSError as error:
            raise CheckpointIOError(
                f"{versions.where(version.name)}: {stream.stream_state_handle_id} cannot be looked at: {error}. Nothing "
                "was changed; try again."
            ) from error
    return metadata


def make_durable(checkpoint: QueryCheckpoint, version: StoreVersion, metadata: CheckpointMetadata) -> None:
    """See to it that a version in local files survives a loss of power, also if the query does not sync what it writes.

    Raises
    ------
    CheckpointIOError
        If that is not sure.
    """
    files, directory = open_file_system(checkpoint.open(version.store).url, fsync=True)
    if not isinstance(files, LocalFileSystem):
        # What others have finished is as safe as they make it.
        return
    where = join(directory, version.name.directory, METADATA_FILE_NAME)
    streams = [entry.state.delegate_state_handle for entry in metadata.handle]
    # Another attempt may have taken the name; then a copy of this one lies beside it.
    within = {(where, metadata.attempt)} | {
        (stream.path, stream.owner) for stream in streams if isinstance(stream, SegmentFileStateHandle)
    }
    paths = [path for name, owner in within for path in (name, f"{name}.{owner}") if files.exists(path)]
    paths += [stream.path for stream in streams if isinstance(stream, FileStateHandle)]
    for path in paths:
        with failing_to("sync", files, path):
            files.make_directory(parent_of(path))
            files.make_durable(path)


def write_store(versions: VersionStore, name: CheckpointName, attempt: str, content: StoreContent) -> None:
    """Write what a store has as one version, a full snapshot that builds on nothing.

    If that fails there is no such version.

    Parameters
    ----------
    versions
        The store that it is written to.
    name
        The version; in Spark's checkpoint format v2 with `attempt` as its id.
    attempt
        Names the attempt at it, 16 hex digits.
    content
        What the version has.

    Raises
    ------
    CheckpointIOError
        If it cannot be written.
    CheckpointError
        If the rows cannot be read.
    """
    positions = {state.name: position for position, state in enumerate(content.states)}
    keys = [0] * len(positions)
    values = [0] * len(positions)
    pending = versions.begin(name, attempt, content.states)
    try:
        for state, table in content.rows():
            position = positions[state]
            several = content.states[position].has_multiple_values
            op = _ops(table) if several else pa.repeat(pa.scalar(PUT, pa.uint8()), table.num_rows)
            changes = pa.table([op, *table.columns], schema=CHANGE_SCHEMA)
            for start in range(0, table.num_rows, _BATCH_ROWS):
                # Many small batches, one of each version, would stay as many.
                for batch in changes.slice(start, _BATCH_ROWS).combine_chunks().to_batches():
                    pending.write(position, batch.serialize())
            keys[position] += _count(op)
            values[position] += table.num_rows
        pending.states = tuple(
            replace(
                state, rows=keys[position], values=values[position] if state.has_multiple_values else None
            )
            for position, state in enumerate(content.states)
        )
        pending.publish(None, None, None)
    except BaseException:
        pending.abandon()
        raise


def _rows(
    versions: VersionStore, name: CheckpointName, metadata: CheckpointMetadata
) -> Iterator[tuple[str, pa.Table]]:
    batches: dict[str, list[pa.RecordBatch]] = {state.name: [] for state in metadata.states}
    # All of it first: until the end it is not known to be sound.
    for state, batch in versions.read(name, metadata):
        batches[state].append(batch)
    for described in metadata.states:
        table = fold(batches.pop(described.name))
        _check(versions, name, described, table)
        if table.num_rows:
            yield described.name, table


def _check(versions: VersionStore, name: CheckpointName, state: NamedState, table: pa.Table) -> None:
    found = table.num_rows
    if found != state.stored_rows:
        raise CorruptCheckpointError(
            f"{versions.where(name)} has {found} values in the state {state.name!r}, and its metadata says {state.stored_rows}. "
            "Take an earlier batch, and please report it; nothing was changed."
        )


def _ops(table: pa.Table) -> pa.Array:
    """A put for the first value of each key, an append for every other one."""
    import numpy as np

    ops = np.full(table.num_rows, APPEND, np.uint8)
    keys, _ = numbered(table["key"])
    ops[np.unique(keys, return_index=True)[1]] = PUT
    return pa.array(ops)


def _count(op: pa.Array) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(pc.equal(op, PUT)).as_py() or 0)
