"""Metadata for merged files, and their publication."""

from __future__ import annotations

from spark_statestore.files import MemoryFileSystem
from spark_statestore.formats.metadata import EncodedObject, InlineState, MetadataKind, encode_object
from spark_statestore.storage.merged_files import MergedFiles
from spark_statestore.storage.merged_index import LogicalFile

STATE = "/query/state"


def attempt(number: int) -> str:
    return f"{number:016x}"


def metadata(number: int, size: int = 0) -> EncodedObject:
    """Metadata of an attempt, with so many bytes of state."""
    return encode_object(
        MetadataKind.STORE_VERSION, attempt(number), {}, [], InlineState.from_data(bytes(size))
    )


def path(store: str, version: int, number: int | None = None) -> str:
    """The path of a version of a store; without a number in checkpoint format v1."""
    return f"{STATE}/{store}/chk-{version}{'' if number is None else '_' + attempt(number)}/_metadata"


def allow(logical: LogicalFile, is_known: bool) -> None:
    """Let every version be published."""


def publish(merged: MergedFiles, *added: tuple[str, int]) -> None:
    """Publish metadata of attempts at paths as one file."""
    for where, number in added:
        merged.add(where, attempt(number), metadata(number), allow)
    assert merged.publish([attempt(number) for _, number in added], allow)[0] == []


def names(files: MemoryFileSystem) -> list[str]:
    return sorted(status.path.rpartition("/")[2] for status in files.list_files(f"{STATE}/_merged"))
