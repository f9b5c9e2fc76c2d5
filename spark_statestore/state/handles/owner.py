"""Which commit attempt wrote a metadata object: the one thing that handles need to know of it."""

from __future__ import annotations

from typing import Final

__all__ = ["METADATA_MAGIC", "owner_of"]

METADATA_MAGIC: Final = b"\x89SSTM\r\n\x1a"
"""The first bytes of every metadata object."""

_ATTEMPT: Final = slice(16, 24)
_HEADER_SIZE: Final = 40


def owner_of(data: bytes) -> str | None:
    """The attempt that wrote a metadata object, None if these bytes are no metadata.

    Parameters
    ----------
    data
        The object, or its first 40 bytes.
    """
    if len(data) < _HEADER_SIZE or not data.startswith(METADATA_MAGIC):
        return None
    return data[_ATTEMPT].hex()
