"""Paths and listings in a checkpoint location that `QueryCheckpoint` does not cover."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from spark_statestore.errors import CheckpointNotFoundError
from spark_statestore.files import FileStatus, open_file_system, parent_of, split_url
from spark_statestore.files.failures import failing_to
from spark_statestore.operator_state.parts import StatePart, require_complete
from spark_statestore.query import OffsetEntry, QueryCheckpoint
from spark_statestore.query.query_checkpoint import ROLLED_BACK
from spark_statestore.storage import METADATA_FILE_NAME, CheckpointName
from spark_statestore.store.metadata import StoreId

_OF_A_STORE: Final = re.compile(r"(\d+)/(\d+)/(?:([^/]+)/)?(chk-\d+(?:_\w+)?|shared)/([^/]+)")


def new_rolled_back_directory(checkpoint: QueryCheckpoint) -> str:
    """Return the path of a new directory ``rolled-back/<time>``."""
    return checkpoint.path(ROLLED_BACK, datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ"))


def with_checksum(checkpoint: QueryCheckpoint, name: str) -> list[str]:
    """Return the names of Hadoop's checksum of a file, if there is one, and of the file."""
    directory, _, file = name.rpartition("/")
    checksum = f"{directory}/.{file}.crc"
    with failing_to("look for", checkpoint.files, checkpoint.path(checksum)):
        has_checksum = checkpoint.files.scheme == "file" and checkpoint.files.exists(
            checkpoint.path(checksum)
        )
    return [checksum, name] if has_checksum else [name]


def replace_file(checkpoint: QueryCheckpoint, name: str, data: bytes) -> None:
    """Write or replace one of Spark's files; Hadoop's checksum of it is deleted before.

    Without a checksum Hadoop does not check.
    """
    files, path = checkpoint.files, checkpoint.path(name)
    for beside in with_checksum(checkpoint, name)[:-1]:
        with failing_to("delete", files, checkpoint.path(beside)):
            files.delete(checkpoint.path(beside))
            files.sync_directory(parent_of(path))
    with failing_to("write", files, path):
        files.make_directory(parent_of(path))
        files.replace(path, data)


def entry_before(checkpoint: QueryCheckpoint, batch: int) -> OffsetEntry:
    """Return the offset log entry before a batch's, which Spark needs to start from that batch.

    Spark reads from it where the batch started, and lets some sources read the batch again. If the entry is
    purged, the batch's own entry replaces it, as if the batch had no new input.
    """
    try:
        return checkpoint.offsets(batch - 1)
    except CheckpointNotFoundError:
        return checkpoint.offsets(batch)


def files_of_stores(checkpoint: QueryCheckpoint) -> Iterator[tuple[StoreId, str, str, FileStatus]]:
    """Yield every file of every store from one listing: store, directory in it, file name, and file."""
    files, directory = checkpoint.open_state()
    with failing_to("list", files, directory):
        for status in files.list_files(directory):
            if match := _OF_A_STORE.fullmatch(status.path[len(directory) + 1 :]):
                operator, partition, name, inside, file = match.groups(default="default")
                yield StoreId(int(operator), int(partition), name), inside, file, status


def path_in_its_file_system(url: str) -> str:
    """Return the path of a URL without scheme and authority, as Hadoop's file system of that URL has it.

    Spark opens such a path with the file system of the checkpoint location, whose scheme may differ from
    fsspec's: ``s3a`` instead of ``s3``.
    """
    scheme, rest = split_url(url)
    if scheme == "file":
        return open_file_system(url)[1].rstrip("/")
    if rest.startswith("//"):
        rest = rest[2:].partition("/")[2]
    return "/" + rest.strip("/")


def operator_states(names: list[str]) -> dict[str, dict[CheckpointName, list[str]]]:
    """Return the files of each operator state checkpoint, by operator."""
    states: dict[str, dict[CheckpointName, list[str]]] = {}
    for path in names:
        operator, _, below = path.partition("/")
        directory, _, name = below.partition("/")
        checkpoint = CheckpointName.parse(directory)
        if checkpoint is not None and checkpoint.id is not None and name:
            states.setdefault(operator, {}).setdefault(checkpoint, []).append(name)
    return states


def newest_operator_state(
    checkpoints: dict[CheckpointName, list[str]], batch: int, where: str
) -> list[CheckpointName]:
    """Return the operator state checkpoints of a batch, one for each subtask; none if there was no state yet.

    Raises
    ------
    CheckpointNotFoundError, CorruptCheckpointError
        If they are no longer retained, or one of them is missing.
    """
    named = ((StatePart.from_checkpoint(name), files) for name, files in checkpoints.items())
    parts = sorted(part for part, files in named if part is not None and METADATA_FILE_NAME in files)
    before = [part for part in parts if part.batch <= batch]
    if before:
        newest = [part for part in before if part.batch == before[-1].batch]
        return [part.name for part in require_complete(newest, f"the operator state at {where}")]
    # Attempts are counted from 1: if the first one is retained, there was none before it.
    if parts and min(part.attempt for part in parts) > 1:
        raise CheckpointNotFoundError(
            f"the operator state at {where} is no longer retained for batch {batch}; the oldest one is of "
            f"batch {parts[0].batch}. Use a later batch; num_retained of QueryOperatorState sets the number "
            "of retained batches."
        )
    return []
