"""What names the place of a checkpoint to those who write a part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = [
    "REFERENCE_MAGIC_NUMBER",
    "CheckpointStorageLocationReference",
    "decode_path_from_reference",
    "encode_path_as_reference",
]

REFERENCE_MAGIC_NUMBER: Final = bytes([0x05, 0x5F, 0x3F, 0x18])
"""Starts a reference that holds a path; Flink's number."""


@dataclass(frozen=True, slots=True)
class CheckpointStorageLocationReference:
    """Names a checkpoint's place: the default one, or one by bytes that its storage understands.

    Attributes
    ----------
    encoded
        The bytes, not empty; None for the default place.

    Raises
    ------
    ValueError
        If the bytes are empty.
    """

    encoded: bytes | None = None

    def __post_init__(self) -> None:
        if self.encoded is not None and not self.encoded:
            raise ValueError("a reference of no bytes names no place; None is the default place")

    @classmethod
    def default(cls) -> CheckpointStorageLocationReference:
        """The place that the storage has for the checkpoint anyway."""
        return _DEFAULT

    @property
    def is_default_reference(self) -> bool:
        """Whether it is the default place."""
        return self.encoded is None

    @property
    def reference_bytes(self) -> bytes:
        """The bytes, none for the default place."""
        return self.encoded or b""


_DEFAULT: Final = CheckpointStorageLocationReference()


def encode_path_as_reference(url: str) -> CheckpointStorageLocationReference:
    """The reference that names a directory by its URL."""
    return CheckpointStorageLocationReference(REFERENCE_MAGIC_NUMBER + url.encode())


def decode_path_from_reference(reference: CheckpointStorageLocationReference) -> str:
    """The URL in a reference.

    Raises
    ------
    ValueError
        If there is none in it: the default reference, one that is too short, starts with another
        number or holds no text.
    """
    if reference.is_default_reference:
        raise ValueError("the default reference names no path: it stands for the storage's own place")
    data = reference.reference_bytes
    if len(data) <= len(REFERENCE_MAGIC_NUMBER):
        raise ValueError(f"a reference of {len(data)} bytes is too short to hold a path: {data.hex()}")
    if not data.startswith(REFERENCE_MAGIC_NUMBER):
        raise ValueError(
            f"a reference that holds a path starts with {REFERENCE_MAGIC_NUMBER.hex()}, this one with "
            f"{data[: len(REFERENCE_MAGIC_NUMBER)].hex()}: another storage made it"
        )
    try:
        return data[len(REFERENCE_MAGIC_NUMBER) :].decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"the reference {data.hex()} holds no text: {error}") from error
