"""Batches and memory by the size of the state, for plots: every store and size in its own JVM."""

from __future__ import annotations

from pathlib import Path

from benchmarks.groups import memory
from benchmarks.result import Result


def run(scratch: Path, quick: bool) -> Result:
    """Measure like the group `memory`, at more sizes."""
    sizes = (1_000, 10_000) if quick else (10_000, 100_000, 300_000, 1_000_000, 3_000_000)
    return memory.result("scale", memory.of_sizes(scratch, sizes), [])
