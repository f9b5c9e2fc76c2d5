"""A small file system that a test can fill."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Self


class SmallDisk:
    """An in-memory file system mounted at a directory, which is created."""

    def __init__(self, directory: Path, megabytes: int) -> None:
        self.directory = directory
        self._megabytes = megabytes
        self._ballast = directory / "ballast"

    @staticmethod
    def missing() -> str | None:
        """Return the reason if this machine cannot mount one."""
        if sys.platform != "linux" or os.geteuid() != 0:
            return "to mount a small disk takes Linux and root"
        return None

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True)
        options = f"size={self._megabytes}m"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.directory)], check=True)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", str(self.directory)], check=True)

    def fill(self) -> None:
        with open(self._ballast, "ab") as file:
            step = 1 << 20
            end = file.tell()
            while step >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), end, step)
                    end += step
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 4

    def empty(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._ballast.unlink()
