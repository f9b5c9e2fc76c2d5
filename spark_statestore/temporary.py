"""Temporary directories that the next start removes if the process that uses them was killed.

A process that uses a directory locks the file ``lock`` in it until the process ends. It is a lock of the
kernel (``flock``): it works between containers and namespaces that share the directory, and does not depend
on process ids, which are reused.

A directory is removed only if it is this user's own and of mode 0700, has a name and content of this package,
and has a lock file that no process has locked. The file is locked before it is renamed into place: a
directory without it is ignored.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from typing import Final

PREFIX: Final = "spark-statestore-"
"""Prefix of the directories' names."""

_LOCK: Final = "lock"
_NEW_LOCK: Final = "lock.new"

# mkdtemp and Java's createTempDirectory, in that order.
_NAME: Final = re.compile(re.escape(PREFIX) + r"([a-z0-9_]{8}|[0-9]{1,20})")
_CONTENT: Final = re.compile(
    r"socket|lock|lock\.new|spark_statestore-[0-9A-Za-z.+]+\.zip|spark-statestore-spark-[0-9.]+\.jar"
)

# Closed by the kernel, when the process ends.
_descriptors: list[int] = []


def keep_while_alive(directory: str) -> None:
    """Keep a directory from `remove_abandoned` for as long as this process lives.

    Where locks do not work, the directory is left behind if the process is killed.
    """
    if not _NAME.fullmatch(os.path.basename(directory)):
        return
    new = os.path.join(directory, _NEW_LOCK)
    handle = -1
    try:
        handle = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(new, os.path.join(directory, _LOCK))
    except OSError:
        if handle >= 0:
            os.close(handle)
            with contextlib.suppress(OSError):
                os.unlink(new)
    else:
        _descriptors.append(handle)


def remove(directory: str) -> None:
    """Remove a directory of this process, unless something else is in it."""
    with contextlib.suppress(OSError):
        for name in filter(_CONTENT.fullmatch, os.listdir(directory)):
            os.unlink(os.path.join(directory, name))
        os.rmdir(directory)


def remove_abandoned(parent: str) -> list[str]:
    """Remove directories below one, such as ``/tmp``, whose processes have ended; return their paths."""
    removed: list[str] = []
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        names = [entry.name for entry in entries if _NAME.fullmatch(entry.name)]
        for name in names:
            path = os.path.join(parent, name)
            # Another start may be removing the same one; directories of other users cannot be opened.
            with contextlib.suppress(OSError):
                if _remove(path):
                    removed.append(path)
    return removed


def _remove(path: str) -> bool:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(directory)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:
            return False
        lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        try:
            if not _is_free(lock):
                return False
            content = os.listdir(directory)
            if not all(_CONTENT.fullmatch(name) for name in content):
                return False
            # The lock file is removed last, so that the next start resumes an interrupted removal.
            for name in sorted(content, key=lambda name: name == _LOCK):
                os.unlink(name, dir_fd=directory)
        finally:
            os.close(lock)
    finally:
        os.close(directory)
    os.rmdir(path)
    return True


def _is_free(lock: int) -> bool:
    if not stat.S_ISREG(os.fstat(lock).st_mode):
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    # False if the file was removed before it was locked.
    return os.fstat(lock).st_nlink == 1
