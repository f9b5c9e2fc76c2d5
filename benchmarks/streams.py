"""Compare a checkpoint stream with a plain file: ``python -m benchmarks.streams``.

Writes the same pieces to a filesystem checkpoint stream and to ``open(path, "wb")``, one after the
other, several times. A stream has a checksum, so another thread computes that of the plain file meanwhile. The exit code
is 1 if the stream takes more than 1.25 times the processor time. The elapsed time is printed only: where writing to the page
cache is as fast as CRC-32, it depends on how soon the other core starts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from spark_statestore.files import LocalFileSystem
from spark_statestore.storage import FsCheckpointStorage
from spark_statestore.storage.file_handles import FileStateHandle
from spark_statestore.storage.streams import CheckpointedStateScope

PIECE = 64 * 1024
MOST = 1.25


@dataclass(frozen=True)
class Measured:
    """Seconds of each round."""

    plain: list[float]
    stream: list[float]

    @property
    def times(self) -> float:
        """Return the ratio of the stream's time to the file's, by medians."""
        return statistics.median(self.stream) / statistics.median(self.plain)


def measure(directory: Path, mebibytes: int, rounds: int) -> tuple[Measured, Measured]:
    """Write the same amount in each round, after a warm-up round.

    Returns
    -------
    tuple
        The processor time of all threads, and the elapsed time.
    """
    storage = FsCheckpointStorage(LocalFileSystem(), str(directory), 1024)
    storage.initialize_base_locations_for_checkpoint()
    pieces = [os.urandom(PIECE)] * (mebibytes * 1024 * 1024 // PIECE)
    processor, elapsed = Measured([], []), Measured([], [])
    for number in range(rounds + 1):
        order = (_plain, processor.plain, elapsed.plain), (_stream, processor.stream, elapsed.stream)
        for write, used, passed in order if number % 2 else reversed(order):
            start = time.process_time()
            seconds = write(storage, pieces)
            if number:
                used.append(time.process_time() - start)
                passed.append(seconds)
    return processor, elapsed


def _plain(storage: FsCheckpointStorage, pieces: list[bytes]) -> float:
    path = Path(storage.directory) / "plain"
    with ThreadPoolExecutor(1) as other:
        start = time.perf_counter()
        checksum = other.submit(_checksum, pieces)
        with open(path, "wb") as file:
            file.writelines(pieces)
        checksum.result()
        seconds = time.perf_counter() - start
    _check(path.stat().st_size, pieces)
    path.unlink()
    return seconds


def _checksum(pieces: list[bytes]) -> int:
    value = 0
    for piece in pieces:
        value = zlib.crc32(piece, value)
    return value


def _stream(storage: FsCheckpointStorage, pieces: list[bytes]) -> float:
    factory = storage.resolve_checkpoint_storage_location(1)
    start = time.perf_counter()
    with factory.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED) as out:
        for piece in pieces:
            out.write(piece)
        handle = out.close_and_get_handle()
    seconds = time.perf_counter() - start
    assert isinstance(handle, FileStateHandle)
    _check(storage.files.size(handle.path), pieces)
    handle.discard_state()
    return seconds


def _check(size: int, pieces: list[bytes]) -> None:
    if size != sum(map(len, pieces)):
        raise RuntimeError(f"a file has {size} bytes, not what was written")


def main() -> int:
    """Measure, print and check the bound."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=1024, help="size of each file (default: 1024)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count (default: 7)")
    parser.add_argument("--directory", help="directory of the files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="statestore-bench-", dir=arguments.directory) as scratch:
        processor, elapsed = measure(Path(scratch), arguments.mebibytes, arguments.rounds)
    print(f"{arguments.mebibytes} MiB in writes of {PIECE // 1024} KiB, seconds")
    for kind, measured in (("processor", processor), ("elapsed", elapsed)):
        for name, seconds in (("plain file", measured.plain), ("checkpoint stream", measured.stream)):
            rounds = " ".join(f"{second:.3f}" for second in seconds)
            print(f"{kind:9} {name:18} median {statistics.median(seconds):.3f}   rounds {rounds}")
    met = processor.times <= MOST
    verdict = "PASS" if met else "FAIL"
    print(f"{verdict}  the stream takes {processor.times:.2f} times the processor time, at most {MOST}")
    print(f"      {elapsed.times:.2f} times the elapsed time")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
