"""References to locations of checkpoints, for the code that writes to a location that other code chose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REFERENCE_MAGIC_NUMBER: Final = bytes.fromhex("055f3f18")
"""Start of a reference that holds a path; the number is Flink's."""


@dataclass(frozen=True, slots=True)
class CheckpointStorageLocationReference:
    """A reference to the location of a checkpoint: the storage's default one, or one by bytes.

    Attributes
    ----------
    encoded
        The bytes, which the storage can decode; None for the default location.
    """

    encoded: bytes | None = None

    def __post_init__(self) -> None:
        if self.encoded is not None and not self.encoded:
            raise ValueError("a reference without bytes refers to no location; None is the default one")

    @classmethod
    def default(cls) -> CheckpointStorageLocationReference:
        """Return the reference to the location that a storage has for a checkpoint by its number."""
        return _DEFAULT

    @property
    def is_default_reference(self) -> bool:
        """True for the default location."""
        return self.encoded is None

    @property
    def reference_bytes(self) -> bytes:
        """The bytes; none for the default location."""
        return self.encoded or b""


_DEFAULT: Final = CheckpointStorageLocationReference()


def encode_path_as_reference(url: str) -> CheckpointStorageLocationReference:
    """Return the reference to a directory by its URL."""
    # Names of local files need not be text: Python has their other bytes as surrogates.
    return CheckpointStorageLocationReference(REFERENCE_MAGIC_NUMBER + url.encode(errors="surrogatepass"))


def decode_path_from_reference(reference: CheckpointStorageLocationReference) -> str:
    """Return the URL in a reference.

    Raises
    ------
    ValueError
        If there is none: in the default reference, or in bytes that another storage made or that are damaged.
    """
    if reference.is_default_reference:
        raise ValueError("the default reference has no path: each storage has a default location of its own")
    data = reference.reference_bytes
    start = len(REFERENCE_MAGIC_NUMBER)
    if not data.startswith(REFERENCE_MAGIC_NUMBER):
        raise ValueError(
            f"a reference to a path starts with the magic number {REFERENCE_MAGIC_NUMBER.hex()}, but this "
            f"one with {data[:start].hex()}: another storage made it"
        )
    if len(data) == start:
        raise ValueError(f"the reference {data.hex()} is too short: its path is missing")
    try:
        return data[start:].decode(errors="surrogatepass")
    except UnicodeDecodeError as error:
        raise ValueError(f"the path in the reference {data.hex()} cannot be decoded: {error}") from error
