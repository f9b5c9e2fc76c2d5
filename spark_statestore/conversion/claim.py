"""Reservation of a conversion's target, which a conversion that was killed does not keep."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import Any, Final

from spark_statestore.errors import CheckpointExistsError
from spark_statestore.files import FileSystem, join, open_file_system
from spark_statestore.files.failures import failing_to
from spark_statestore.formats.metadata import parse_json
from spark_statestore.query.query_checkpoint import METADATA
from spark_statestore.savepoints.new_location import IN_PROGRESS, is_reserved, remove_location

_BY: Final = "conversion"
_UNKNOWN: Final = "unknown"

_REMOVING: Final = "_removing"
"""File in a location from which the files of an interrupted conversion are removed."""


def claim(pids: list[int]) -> bytes:
    """Return the content of the marker file of a conversion that these processes run."""
    processes = [{"pid": pid, "started": _started(pid)} for pid in pids]
    return json.dumps({"by": _BY, "host": _host(), "scope": _scope(), "processes": processes}).encode()


def remove_interrupted(target: str) -> bool:
    """Remove what a conversion that was killed left at a location; False if there is nothing of that kind.

    Raises
    ------
    CheckpointExistsError
        If that conversion still runs, or ran on another machine, in another container, or before this machine
        restarted.
    """
    files, root = open_file_system(target, fsync=True)
    root = root.rstrip("/")
    if not _was_interrupted(files, root):
        return False
    # The next conversion may begin as soon as one process has removed the files, which a second one must not
    # remove.
    lock = join(root, _REMOVING)
    with failing_to("write", files, lock):
        try:
            files.create(lock, b"")
        except FileExistsError as error:
            raise CheckpointExistsError(
                f"another process removes the files of an interrupted conversion from {files.url(root)}, or "
                "was killed while it did: then delete the directory. Nothing was changed."
            ) from error
    try:
        if is_interrupted := _was_interrupted(files, root):
            remove_location(files, root)
    finally:
        with contextlib.suppress(OSError):
            files.delete(lock)
            files.delete_directory(root)
    return is_interrupted


def _was_interrupted(files: FileSystem, root: str) -> bool:
    """Return True if a location has the files of a conversion whose processes have ended.

    Raise an error if they may run.
    """
    marker = _read(files, join(root, IN_PROGRESS))
    if marker is None:
        return False
    with failing_to("look for", files, join(root, METADATA)):
        if files.exists(join(root, METADATA)) and not is_reserved(files, root):
            return False
    where = files.url(root)
    if (marker["host"], marker["scope"]) != (_host(), _scope()):
        raise CheckpointExistsError(
            f"{where} has the files of a conversion that began on {marker['host']}, on another machine, in "
            "another container or before a restart, and is not complete. If it no longer runs there, delete "
            "the directory; nothing was changed."
        )
    for process in marker["processes"]:
        started = _started(process["pid"])
        if started is not None and started in (_UNKNOWN, process["started"]):
            raise CheckpointExistsError(
                f"{where} is the target of a conversion that runs in process {process['pid']} on this "
                "machine. Wait for its end, or use another target; nothing was changed."
            )
    return True


def _read(files: FileSystem, path: str) -> dict[str, Any] | None:
    """Return the content of a marker file of a conversion; None if there is none, or another one."""
    with contextlib.suppress(FileNotFoundError, KeyError, ValueError, TypeError):
        node = parse_json(files.read(path))
        if node["by"] == _BY:
            return {
                "host": str(node["host"]),
                "scope": node["scope"],
                "processes": list(node["processes"]),
            }
    return None


def _host() -> str:
    return socket.gethostname()


def _scope() -> list[str]:
    """Return what tells process ids of this kernel and container from those of others.

    A host name does not: several may have the same one.
    """
    ids = []
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        ids.append(file.read().strip())
    with contextlib.suppress(OSError):
        ids.append(os.readlink("/proc/self/ns/pid"))
    return ids


def _started(pid: int) -> str | None:
    """Return when a process of this machine started; None if it ended.

    The time distinguishes the process from later ones of its id. It is "unknown" if the system does not show
    it.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        # It ended, or belongs to another user and is hidden, or there is no /proc.
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return _UNKNOWN
    # A zombie writes no more.
    return None if fields[0] == "Z" else fields[19]
