"""CRC-32 checksums of streams, computed while writing or combined from those of parts."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

ChecksummedPart = tuple[bytes | memoryview, int | None]
"""Data and its CRC-32, if known."""

# Less data is checksummed faster than another thread starts.
_WORTH_A_THREAD = 256 * 1024

# So few zeros are checksummed faster than combined by tables.
_FEW_ZEROS = 1 << 10


def combine(first: int, second: int, size: int) -> int:
    """Return the CRC-32 of two consecutive pieces from the CRC-32 of each and the size of the second."""
    # Appending zeros transforms a CRC linearly over GF(2), as in zlib's crc32_combine.
    few = size % _FEW_ZEROS
    shifted = zlib.crc32(bytes(few), first) ^ zlib.crc32(bytes(few))
    size //= _FEW_ZEROS
    power = 0
    while size:
        if size & 1:
            shifted = _apply(_zeros(power), shifted)
        size >>= 1
        power += 1
    return shifted ^ second


@cache
def _zeros(power: int) -> tuple[tuple[int, ...], ...]:
    """Return the operator of `_FEW_ZEROS * 2**power` zeros as tables.

    There is a table for each four bits of the checksum.
    """
    if power == 0:
        zeros = bytes(_FEW_ZEROS)
        nothing = zlib.crc32(zeros)
        columns = [zlib.crc32(zeros, 1 << bit) ^ nothing for bit in range(32)]
    else:
        half = _zeros(power - 1)
        columns = [_apply(half, _apply(half, 1 << bit)) for bit in range(32)]
    return tuple(_sums(columns[bit : bit + 4]) for bit in range(0, 32, 4))


def _sums(values: Sequence[int]) -> tuple[int, ...]:
    sums = [0]
    for value in values:
        sums += [value ^ before for before in sums]
    return tuple(sums)


def _apply(zeros: tuple[tuple[int, ...], ...], checksum: int) -> int:
    result = 0
    for values in zeros:
        result ^= values[checksum & 15]
        checksum >>= 4
    return result


class RunningChecksum:
    """CRC-32 of everything so far.

    A checksum takes about as long as writing the same bytes to the page cache, and both release Python's
    global lock: another thread computes it for large pieces while they are written.
    """

    def __init__(self) -> None:
        self.value = 0

    def update(self, parts: Sequence[ChecksummedPart], meanwhile: Callable[[], None]) -> None:
        """Add data, and run a function on it at the same time.

        Errors of `meanwhile` are raised once the data is no longer in use.
        """
        if sum(len(part) for part, checksum in parts if checksum is None) < _WORTH_A_THREAD:
            meanwhile()
            self.value = checksum_of(parts, self.value)
            return
        with_checksum = _workers().submit(checksum_of, parts, self.value)
        try:
            meanwhile()
        finally:
            self.value = with_checksum.result()


def checksum_of(parts: Sequence[ChecksummedPart], value: int = 0) -> int:
    """Return the CRC-32 of consecutive pieces, continuing from the checksum `value`."""
    for part, checksum in parts:
        value = zlib.crc32(part, value) if checksum is None else combine(value, checksum, len(part))
    return value


@cache
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="checksum")


if hasattr(os, "register_at_fork"):
    # A forked process has none of the threads.
    os.register_at_fork(after_in_child=_workers.cache_clear)
