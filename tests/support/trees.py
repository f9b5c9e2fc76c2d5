"""Snapshots of directories, to compare before and after."""

from __future__ import annotations

from pathlib import Path


def files_below(directory: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a directory, by relative path."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}
