"""Which commit attempt wrote a metadata object: the one thing that handles need to know of it."""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["ATTEMPT", "METADATA_MAGIC", "is_attempt", "owner_of"]

METADATA_MAGIC: Final = b"\x89SSTM\r\n\x1a"
"""The first bytes of every metadata object."""

ATTEMPT: Final = r"[0-9a-f]{16}"
"""What attempts are called, as a regular expression."""

_IN_HEADER: Final = slice(16, 24)
_HEADER_SIZE: Final = 40


_ATTEMPT: Final = re.compile(ATTEMPT)


def is_attempt(value: Any) -> bool:
    """Whether this is the name of an attempt."""
    return isinstance(value, str) and _ATTEMPT.fullmatch(value) is not None


def owner_of(data: bytes) -> str | None:
    """The attempt that wrote a metadata object, None if these bytes are no metadata.

    Parameters
    ----------
    data
        The object, or its first 40 bytes.
    """
    if len(data) < _HEADER_SIZE or not data.startswith(METADATA_MAGIC):
        return None
    return data[_IN_HEADER].hex()
