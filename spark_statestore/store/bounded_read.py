"""Reads of a version's changes within a memory limit, in several passes over its streams."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_statestore.errors import CorruptCheckpointError, restore_from_backup
from spark_statestore.storage import CheckpointName
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.healing import read_healed
from spark_statestore.store.metadata import CheckpointMetadata
from spark_statestore.store.reader import read_version

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Changes = dict[str, list[pa.RecordBatch]]
"""Changes by column family, oldest first."""

# A key's values are never split, even beyond the memory limit.
_MOST_PARTS: Final = 1 << 16

# Sizes of UnsafeRows are multiples of this.
_WORD: Final = 8


def changes_in_parts(
    store: StoreDirectory,
    name: CheckpointName,
    metadata: CheckpointMetadata,
    families: Collection[str],
    memory: int | None,
) -> Iterator[tuple[Changes, bool]]:
    """Yield the changes of column families, in one part or in several with different keys.

    All changes of a key are in one part. A part is yielded once all streams of the version were read to their
    ends and verified. The flag is True if there is one part.

    Parameters
    ----------
    memory
        Limit of the bytes of the changes in a part, approximately; None is no limit.
    """
    parts = [(0, 1)]
    while parts:
        part, count = parts.pop()
        limit = memory if count < _MOST_PARTS else None
        read_part = partial(_changes_of_part, store, name, families, part, count, limit)
        # Each part is read of the same streams.
        changes, metadata = read_healed(store, name, metadata, read_part)
        if changes is None:
            parts += [(part, 2 * count), (part + count, 2 * count)]
        else:
            yield changes, count == 1


def _changes_of_part(
    store: StoreDirectory,
    name: CheckpointName,
    families: Collection[str],
    part: int,
    count: int,
    memory: int | None,
    metadata: CheckpointMetadata,
) -> tuple[Changes | None, CheckpointMetadata]:
    """Return the changes of the keys in one part; None if they exceed the memory limit."""
    changes: Changes = {family: [] for family in families}
    size = 0
    for family, batch in read_version(store, name, metadata):
        if family not in changes:
            continue
        if count > 1:
            batch = batch.filter(pa.array(_parts(batch["key"], count, store, name) == part))
        size += batch.nbytes
        if memory is not None and size > memory:
            return None, metadata
        changes[family].append(batch)
    return changes, metadata


def _parts(
    keys: pa.BinaryArray, parts: int, store: StoreDirectory, name: CheckpointName
) -> NDArray[np.uint64]:
    """Return the part of each key, out of a power of two, by a hash of its words."""
    import numpy as np

    _, offsets_buffer, data = keys.buffers()
    positions = np.frombuffer(offsets_buffer, "<i4", len(keys) + 1, 4 * keys.offset)
    if (positions % _WORD).any():
        raise CorruptCheckpointError(
            f"{store.where(name)} has keys that are no UnsafeRows, as their sizes are not multiples of "
            f"{_WORD} bytes. {restore_from_backup()}"
        )
    offsets = positions.astype(np.int64) // _WORD
    words = np.frombuffer(data if data is not None else b"", "<u8", int(offsets[-1]))
    hashes = np.zeros(len(keys), np.uint64)
    sizes = np.diff(offsets)
    for word in range(int(sizes.max(initial=0))):
        longer = np.flatnonzero(sizes > word)
        mixed = (hashes[longer] ^ words[offsets[longer] + word]) * np.uint64(0x9E3779B97F4A7C15)
        hashes[longer] = mixed ^ (mixed >> np.uint64(32))
    # The low bits of a product do not depend on the high bits of its factors, where strings differ last.
    return ((hashes * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(48)) & np.uint64(parts - 1)
