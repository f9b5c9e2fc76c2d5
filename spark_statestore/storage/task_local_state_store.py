"""Local copies of full snapshots on the disk of the host whose task loads them again."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
import shutil
import stat
import time
from dataclasses import dataclass
from typing import Final

from spark_statestore.options import StorageOptions

_logger = logging.getLogger(__name__)

# The file of a copy has the name of its stream. The JVM adds a random number and this while it writes.
_COPY: Final = re.compile(r"(\d+)-[0-9A-Za-z-]+")
_UNFINISHED: Final = re.compile(_COPY.pattern + r"\.\d+\.tmp")
_UNFINISHED_SECONDS: Final = 3600.0

# Bytes that stay free on a disk, where a tenth of it is not more.
_LEAST_FREE: Final = 1 << 30

# A copy has at most about so many bytes for each byte of a compressed stream.
_MOST_GROWTH: Final = 8


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """Place of a local copy.

    Attributes
    ----------
    path
        Its file.
    stream_id
        The store's URL and the name of the full snapshot that it is a copy of. The file has them, too.
    """

    path: str
    stream_id: str

    def to_json(self) -> dict[str, str]:
        """Return the description that answers carry."""
        return {"path": self.path, "streamId": self.stream_id}


class TaskLocalStateStore:
    """The local copies of one store's full snapshots on this host.

    The JVM writes and verifies the files; this class says where they are, and removes them. Nothing depends
    on them: a checkpoint is complete without. Several processes may share a directory. A file that is removed
    while another process has it open stays readable there.

    Parameters
    ----------
    directory
        Directory of the copies of all stores on this host, an absolute path. It is created for this user
        alone.
    store
        URL of the store's directory.
    """

    def __init__(self, directory: str, store: str) -> None:
        self._root = directory
        self._store = store
        digest = hashlib.blake2b(store.encode(), digest_size=16).hexdigest()
        self._directory = os.path.join(directory, digest)

    @classmethod
    def from_options(
        cls, options: StorageOptions, store: str, is_local: bool, default_directory: str | None
    ) -> TaskLocalStateStore | None:
        """Return the copies of a store as its options say; None if it has none.

        Parameters
        ----------
        is_local
            Whether the store itself is in local files.
        default_directory
            Directory for ``localRecovery=auto``; None for no copies. There are none on a tmpfs, whose files
            take the memory of their container.
        """
        parent = options.local_recovery
        if options.storage == "memory" or parent == "off" or not options.local_recovery_max_bytes:
            return None
        if parent == "auto":
            if is_local or default_directory is None or _is_in_memory(default_directory):
                return None
            parent = default_directory
        directory = os.path.join(parent, f"spark-statestore-local-{os.geteuid()}")
        return cls(directory, store)

    def retrieve_local_state(self, name: str) -> LocalCopy | None:
        """Return the copy of a stream, None if there is none.

        Parameters
        ----------
        name
            Name of the stream: its version, a hyphen, and what is unique to it.
        """
        path = os.path.join(self._directory, name)
        try:
            if not (_COPY.fullmatch(name) and _is_private(self._root) and _is_private(self._directory)):
                return None
            if not stat.S_ISREG(os.lstat(path).st_mode):
                return None
            os.utime(path)
        except OSError:
            return None
        return LocalCopy(path, self._stream_id(name))

    def store_local_state(self, name: str, size: int, oldest: int) -> LocalCopy | None:
        """Return the place for a copy of a stream, after older copies of the store were removed.

        None if no copy is wanted, or the disk cannot be written to or is nearly full. The writer makes room
        for it in `localRecoveryMaxBytes`.

        Parameters
        ----------
        name
            Name of the stream: its version, a hyphen, and what is unique to it.
        size
            Bytes of the stream.
        oldest
            Version of the oldest full snapshot of which a copy may be useful.
        """
        if not _COPY.fullmatch(name):
            return None
        try:
            for directory in (self._root, self._directory):
                os.makedirs(directory, mode=0o700, exist_ok=True)
                if not _is_private(directory):
                    _logger.warning(
                        "no local copies are written to %s: it is not a directory of this user with mode "
                        "0700. Set localRecovery to another directory, or to off.",
                        directory,
                    )
                    return None
            self._prune(oldest)
            disk = shutil.disk_usage(self._directory)
            if disk.free - _MOST_GROWTH * size < max(_LEAST_FREE, disk.total // 10):
                return None
        except OSError as error:
            _logger.warning("no local copies are written to %s: %s", self._directory, error)
            return None
        return LocalCopy(os.path.join(self._directory, name), self._stream_id(name))

    def _prune(self, oldest: int) -> None:
        for entry in list(os.scandir(self._directory)):
            match = _COPY.fullmatch(entry.name)
            if (match and int(match[1]) < oldest) or _is_abandoned(entry):
                # Another process may remove it, too.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)

    def _stream_id(self, name: str) -> str:
        return f"{self._store.rstrip('/')}/{name}"


@functools.lru_cache
def _is_in_memory(directory: str) -> bool:
    """Return True if a directory is on a file system in memory."""
    path = os.path.realpath(directory)
    longest, kind = -1, ""
    with contextlib.suppress(OSError), open("/proc/mounts") as mounts:
        for line in mounts:
            _, place, file_system, *_ = line.split(" ")
            # Special characters in it are octal.
            place = place.encode().decode("unicode_escape")
            is_below = path == place or path.startswith(place.rstrip("/") + "/")
            if is_below and len(place) >= longest:
                longest, kind = len(place), file_system
    return kind in ("tmpfs", "ramfs")


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    """Return True for a file that a process has not finished, and does not write any more."""
    if not _UNFINISHED.fullmatch(entry.name):
        return False
    return time.time() - entry.stat(follow_symlinks=False).st_mtime > _UNFINISHED_SECONDS


def _is_private(directory: str) -> bool:
    """Return True for a directory of this user that no other one can enter."""
    status = os.lstat(directory)
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not stat.S_IMODE(status.st_mode) & 0o077
    )
