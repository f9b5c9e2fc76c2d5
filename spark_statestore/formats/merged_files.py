"""The physical file that contains the metadata objects of many stores; docs/format.md shows the layout."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_statestore.formats.checksums import combine
from spark_statestore.formats.metadata import (
    INLINE_STATE_OFFSET,
    EncodedObject,
    InlineState,
    MetadataKind,
    decode_object,
    encode_object,
    matches_with_state,
    reading,
    require_attempt_id,
    require_count,
    require_type,
)

_NAME: Final = re.compile(r"(\d{1,19})-(\d{1,19})-(\d{1,19})(-copy|-written-(\d{1,19}))?")
# The paths become paths of the file system.
_PATH: Final = re.compile(r"\d+/\d+/(?:[^/\0]+/)?chk-\d{1,19}(?:_[0-9A-Za-z]{1,64})?/_metadata")


@dataclass(frozen=True, slots=True, order=True)
class PhysicalName:
    """The name of a physical file.

    Attributes
    ----------
    oldest, newest
        Range of the versions in it.
    number
        Distinguishes files of one range.
    is_copy
        Whether what is in it was published in other files before, which are deleted once it is whole.
    write
        Number of the write in place that published it after the file without a write, from 1; 0 if a batch
        did. Its attempts may follow attempts that were copied.
    """

    oldest: int
    newest: int
    number: int
    is_copy: bool = False
    write: int = 0

    @classmethod
    def parse(cls, name: str) -> PhysicalName | None:
        """Parse the name of a physical file; return None for other names."""
        match = _NAME.fullmatch(name)
        return match and cls(
            int(match[1]), int(match[2]), int(match[3]), match[4] == "-copy", int(match[5] or 0)
        )

    def covers(self, version: int) -> bool:
        """Return True if the file may contain a version."""
        return self.oldest <= version <= self.newest

    def __str__(self) -> str:
        end = "-copy" if self.is_copy else f"-written-{self.write}" if self.write else ""
        return f"{self.oldest}-{self.newest}-{self.number}{end}"


@dataclass(frozen=True, slots=True)
class MergedObject:
    """A metadata object to be merged, and its CRC-32.

    Attributes
    ----------
    path
        Its path below the query's state directory.
    rank
        Its place among the attempts at the same path: the highest one counts.
    """

    path: str
    attempt_id: str
    rank: int
    data: bytes
    checksum: int


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A logical file in the index of a physical file: `size` bytes from `start`.

    For the other fields see `MergedObject`.
    """

    path: str
    attempt_id: str
    rank: int
    start: int
    size: int


def encode_physical_file(attempt_id: str, objects: Sequence[MergedObject]) -> EncodedObject:
    """Encode a physical file; `attempt_id` identifies the attempt to publish it."""
    size = checksum = 0
    for merged in objects:
        checksum = combine(checksum, merged.checksum, len(merged.data))
        size += len(merged.data)
    index = {
        "checksum": checksum,
        "paths": [merged.path for merged in objects],
        "attempts": [merged.attempt_id for merged in objects],
        "ranks": [merged.rank for merged in objects],
        "sizes": [len(merged.data) for merged in objects],
    }
    state = InlineState([merged.data for merged in objects], size, checksum)
    return encode_object(MetadataKind.MERGED_FILES, attempt_id, index, (), state)


def decode_index(data: bytes, where: str) -> list[IndexEntry]:
    """Decode and verify the index of a physical file, from its bytes with or without the logical files."""
    decoded = decode_object(data, where, without_state=True)
    with reading(where):
        if decoded.kind is not MetadataKind.MERGED_FILES:
            raise ValueError(f"it describes {decoded.kind.name}, not merged files")
        index = decoded.properties
        entries = []
        start = INLINE_STATE_OFFSET
        columns = (index["paths"], index["attempts"], index["ranks"], index["sizes"])
        for path, attempt_id, rank, size in zip(*columns, strict=True):
            require_type(path, str)
            require_attempt_id(attempt_id)
            require_count(rank)
            require_count(size)
            if not _PATH.fullmatch(path) or ".." in path.split("/"):
                raise ValueError(f"it has the path {path!r:.80}")
            entries.append(IndexEntry(path, attempt_id, rank, start, size))
            start += size
        require_count(index["checksum"])
        if not matches_with_state(data, start - INLINE_STATE_OFFSET, index["checksum"]):
            raise ValueError("its length or its checksum is not that of its index")
        return entries
