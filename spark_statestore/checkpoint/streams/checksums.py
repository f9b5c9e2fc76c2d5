"""Checksums of streams: computed while they are written, or put together from those of their parts."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

__all__ = ["RunningChecksum", "Summed", "checksum_of", "combine"]

Summed = tuple[bytes | memoryview, int | None]
"""Bytes, and their CRC-32 if it is known."""

# Less is summed up sooner than another thread takes it over.
_WORTH_A_THREAD = 256 * 1024

# So many zeros are summed up sooner than computed.
_FEW_ZEROS = 1 << 10


def combine(first: int, second: int, size: int) -> int:
    """CRC-32 of two pieces of data in a row, from the CRC-32 of each and the bytes of the second."""
    # What a checksum becomes by zeros behind its data is linear in it.
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
    """What `_FEW_ZEROS` times 2 to the power zeros make of a checksum: for each four bits of it, of each value."""
    if power == 0:
        zeros = bytes(_FEW_ZEROS)
        nothing = zlib.crc32(zeros)
        made = [zlib.crc32(zeros, 1 << bit) ^ nothing for bit in range(32)]
    else:
        half = _zeros(power - 1)
        made = [_apply(half, _apply(half, 1 << bit)) for bit in range(32)]
    return tuple(_sums(made[bit : bit + 4]) for bit in range(0, 32, 4))


def _sums(of: Sequence[int]) -> tuple[int, ...]:
    sums = [0]
    for value in of:
        sums += [value ^ before for before in sums]
    return tuple(sums)


def _apply(zeros: tuple[tuple[int, ...], ...], checksum: int) -> int:
    made = 0
    for values in zeros:
        made ^= values[checksum & 15]
        checksum >>= 4
    return made


class RunningChecksum:
    """CRC-32 of everything so far.

    Summing up takes about as long as handing the same bytes to the page cache, and both leave
    Python's lock: large pieces are summed up by another thread while they are written.
    """

    def __init__(self) -> None:
        self.value = 0

    def update(self, parts: Sequence[Summed], meanwhile: Callable[[], None]) -> None:
        """Add bytes, and do something with them at the same time.

        Whatever `meanwhile` raises is raised when the bytes are not in use any more.
        """
        if sum(len(part) for part, checksum in parts if checksum is None) < _WORTH_A_THREAD:
            meanwhile()
            self.value = checksum_of(parts, self.value)
            return
        summed = _workers().submit(checksum_of, parts, self.value)
        try:
            meanwhile()
        finally:
            self.value = summed.result()


def checksum_of(parts: Sequence[Summed], value: int = 0) -> int:
    """CRC-32 of pieces in a row, behind what has the checksum `value`."""
    for part, checksum in parts:
        value = zlib.crc32(part, value) if checksum is None else combine(value, checksum, len(part))
    return value


@cache
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="checksum")


if hasattr(os, "register_at_fork"):
    # A child process has none of the threads.
    os.register_at_fork(after_in_child=_workers.cache_clear)
