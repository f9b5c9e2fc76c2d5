"""A checkpoint stream takes about the processor time of a plain file and its checksum."""

from __future__ import annotations

import os
import statistics
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_statestore.files import LocalFileSystem
from spark_statestore.storage import FsCheckpointStorage
from spark_statestore.storage.file_handles import FileStateHandle
from spark_statestore.storage.streams import CheckpointedStateScope

PIECE = 64 * 1024
MEBIBYTES, ROUNDS = 128, 20
MOST = 1.25


@pytest.mark.alone
@pytest.mark.slow
def test_stream_takes_little_more_processor_time_than_a_plain_file_with_its_checksum(tmp_path: Path) -> None:
    storage = FsCheckpointStorage(LocalFileSystem(), str(tmp_path), 1024)
    storage.initialize_base_locations_for_checkpoint()
    pieces = [os.urandom(PIECE)] * (MEBIBYTES * 1024 * 1024 // PIECE)
    ways = {"plain": write_plain, "stream": write_stream}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name in sorted(ways, reverse=number % 2 == 1):
            taken = processor_time(ways[name], storage, pieces)
            # The first round warms up.
            if number:
                seconds[name].append(taken)
    times = statistics.median(seconds["stream"]) / statistics.median(seconds["plain"])
    assert times <= MOST, f"the stream takes {times:.2f} times the processor time: {seconds}"


def processor_time(
    write: Callable[[FsCheckpointStorage, list[bytes]], None],
    storage: FsCheckpointStorage,
    pieces: list[bytes],
) -> float:
    """Return the processor time of all threads."""
    start = time.process_time()
    write(storage, pieces)
    return time.process_time() - start


def write_plain(storage: FsCheckpointStorage, pieces: list[bytes]) -> None:
    """Write a file while another thread computes its checksum, as a stream has one."""
    path = Path(storage.directory) / "plain"
    with ThreadPoolExecutor(1) as other:
        checksum = other.submit(checksum_of, pieces)
        with open(path, "wb") as file:
            file.writelines(pieces)
        checksum.result()
    assert path.stat().st_size == sum(map(len, pieces))
    path.unlink()


def checksum_of(pieces: list[bytes]) -> int:
    value = 0
    for piece in pieces:
        value = zlib.crc32(piece, value)
    return value


def write_stream(storage: FsCheckpointStorage, pieces: list[bytes]) -> None:
    factory = storage.resolve_checkpoint_storage_location(1)
    with factory.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED) as out:
        for piece in pieces:
            out.write(piece)
        handle = out.close_and_get_handle()
    assert isinstance(handle, FileStateHandle)
    assert storage.files.size(handle.path) == sum(map(len, pieces))
    handle.discard_state()
