"""How much memory this process takes."""

from __future__ import annotations

import mmap
import sys

__all__ = ["resident_bytes"]


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
