"""How much memory this process takes."""

from __future__ import annotations

import math
import mmap
import sys
import time

__all__ = ["recent_resident_bytes", "resident_bytes"]


# Counting the pages takes longer than the rest of an answer.
_FRESH_SECONDS = 1.0
_last = (-math.inf, 0)


def recent_resident_bytes() -> int:
    """As `resident_bytes`, of a moment within the last second."""
    global _last
    now = time.monotonic()
    looked, found = _last
    if now - looked > _FRESH_SECONDS:
        found = resident_bytes()
        _last = (now, found)
    return found


def resident_bytes() -> int:
    """Resident memory of this process in bytes.

    Its peak where the system does not tell more, 0 where it tells nothing.
    """
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        try:
            import resource
        except ImportError:
            return 0
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
