"""What lies where in a checkpoint location, beyond what `QueryCheckpoint` reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from spark_statestore.checkpoint.files import FileStatus, FileSystem, open_file_system, split_url
from spark_statestore.checkpoint.files.failures import failing_to
from spark_statestore.checkpoint.metadata import StoreId
from spark_statestore.checkpoint.query import OffsetEntry, QueryCheckpoint
from spark_statestore.checkpoint.storage import METADATA_FILE_NAME, CheckpointName
from spark_statestore.errors import CheckpointNotFoundError

__all__ = [
    "entry_before",
    "files_of_stores",
    "list_below",
    "newest_operator_state",
    "operator_states",
    "path_in_its_file_system",
]


_OF_A_STORE: Final = re.compile(r"(\d+)/(\d+)/(?:([^/]+)/)?(chk-\d+(?:_\w+)?|shared)/([^/]+)")


def entry_before(checkpoint: QueryCheckpoint, batch: int) -> OffsetEntry:
    """The entry of the offset log before a batch's, as Spark needs it to start from that batch.

    It wants to know where the batch started, and has some sources read it once more. If the entry
    is not kept, the batch's own takes its place, as if the batch had found nothing new.
    """
    try:
        return checkpoint.offsets(batch - 1)
    except CheckpointNotFoundError:
        return checkpoint.offsets(batch)


def files_of_stores(checkpoint: QueryCheckpoint) -> Iterator[tuple[StoreId, str, str, FileStatus]]:
    """Every file of every store, from one listing.

    Yields
    ------
    tuple
        The store, the name of the directory in it, that of the file, and the file.

    Raises
    ------
    CheckpointIOError
        If the state directory cannot be listed.
    """
    files, directory = open_file_system(checkpoint.state_url)
    directory = directory.rstrip("/")
    with failing_to("list", files, directory):
        for status in files.list_files(directory):
            if match := _OF_A_STORE.fullmatch(status.path[len(directory) + 1 :]):
                operator, partition, name, inside, file = match.groups(default="default")
                yield StoreId(int(operator), int(partition), name), inside, file, status


def path_in_its_file_system(url: str) -> str:
    """The path of a URL, without scheme and authority, as Hadoop's file system of that URL knows it.

    Spark opens such a path with the file system of the checkpoint location. So it fits whatever the
    scheme is called there: what fsspec knows as ``s3`` may be ``s3a`` to Spark.
    """
    scheme, rest = split_url(url)
    if scheme == "file":
        return open_file_system(url)[1].rstrip("/")
    if rest.startswith("//"):
        rest = rest[2:].partition("/")[2]
    return "/" + rest.strip("/")


def list_below(files: FileSystem, directory: str) -> list[str]:
    """Every file below a directory, by path from there, in order; hidden ones are left out."""
    start = directory.rstrip("/") + "/"
    with failing_to("list", files, directory):
        names = [status.path[len(start) :] for status in files.list_files(directory)]
    # Hadoop's checksums, and what is being written.
    return sorted(name for name in names if not name.rpartition("/")[2].startswith("."))


def operator_states(names: list[str]) -> dict[str, dict[CheckpointName, list[str]]]:
    """The files of each checkpoint of the operator state of a query's own code, by operator.

    Parameters
    ----------
    names
        What lies in the directory of operator state.
    """
    found: dict[str, dict[CheckpointName, list[str]]] = {}
    for path in names:
        operator, _, below = path.partition("/")
        directory, _, name = below.partition("/")
        checkpoint = CheckpointName.parse(directory)
        if checkpoint is not None and checkpoint.id is not None and name:
            found.setdefault(operator, {}).setdefault(checkpoint, []).append(name)
    return found


def newest_operator_state(
    checkpoints: dict[CheckpointName, list[str]], batch: int, where: str
) -> CheckpointName | None:
    """The checkpoint of an operator that a batch left; None if it had no state yet.

    Raises
    ------
    CheckpointNotFoundError
        If that is not kept any more.
    """
    whole = sorted(
        (name.version, str(name.id)) for name, files in checkpoints.items() if METADATA_FILE_NAME in files
    )
    before = [found for found in whole if found[0] <= batch]
    if before:
        return CheckpointName(*before[-1])
    # Attempts are counted from 1, so where the first one is still there, nothing was before it.
    if whole and int(min(number for _, number in whole), 16) > 1:
        raise CheckpointNotFoundError(
            f"the operator state at {where} is not kept for batch {batch} any more, its oldest one is of batch "
            f"{whole[0][0]}. Take a later batch; num_retained of QueryOperatorState says how many are kept."
        )
    return None
