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
from spark_statestore.storage import CheckpointStorageLocationReference, FsCheckpointStorage
from spark_statestore.storage.file_handles import FileStateHandle
from spark_statestore.storage.streams import CheckpointedStateScope

PIECES = [os.urandom(64 * 1024)] * 2048
SIZE = sum(map(len, PIECES))
ROUNDS = 20
MOST = 1.25


@pytest.mark.alone
@pytest.mark.slow
def test_stream_takes_little_more_processor_time_than_a_plain_file_with_its_checksum(tmp_path: Path) -> None:
    storage = FsCheckpointStorage(LocalFileSystem(), str(tmp_path), 1024)
    storage.initialize_base_locations_for_checkpoint()
    plain, stream = [], []
    # The first round warms up.
    for _ in range(ROUNDS + 1):
        plain.append(processor_time(lambda: write_plain(tmp_path / "plain")))
        stream.append(processor_time(lambda: write_stream(storage)))
    times = statistics.median(stream[1:]) / statistics.median(plain[1:])
    assert times <= MOST, f"the stream takes {times:.2f} times the processor time: {plain}, {stream}"


def processor_time(write: Callable[[], None]) -> float:
    """Return the processor time of all threads."""
    start = time.process_time()
    write()
    return time.process_time() - start


def checksum_of(pieces: list[bytes]) -> int:
    value = 0
    for piece in pieces:
        value = zlib.crc32(piece, value)
    return value


def write_plain(path: Path) -> None:
    """Write a file while another thread computes its checksum, as a stream has one."""
    with ThreadPoolExecutor(1) as pool:
        checksum = pool.submit(checksum_of, PIECES)
        with open(path, "wb") as file:
            file.writelines(PIECES)
        checksum.result()
    assert path.stat().st_size == SIZE
    path.unlink()


def write_stream(storage: FsCheckpointStorage) -> None:
    factory = storage.resolve_checkpoint_storage_location(1, CheckpointStorageLocationReference.default())
    with factory.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED) as out:
        for piece in PIECES:
            out.write(piece)
        handle = out.close_and_get_handle()
    assert isinstance(handle, FileStateHandle)
    assert storage.files.size(handle.path) == SIZE
    handle.discard_state()
