"""Listing of the retention holds on a checkpoint, and removal of those that nothing needs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from spark_statestore.errors import (
    CheckpointNotFoundError,
    IllegalStateError,
    SavepointNotFoundError,
    StateStoreError,
)
from spark_statestore.files import open_file_system, parent_of
from spark_statestore.files.failures import failing_to
from spark_statestore.query.gc import DAY
from spark_statestore.query.running import storage_time
from spark_statestore.query.savepoint_lookup import load_savepoint, open_checkpoint
from spark_statestore.savepoints.savepoint_holds import Hold, list_holds
from spark_statestore.store.holds import is_temporary_hold

HoldStatus = Literal["needed", "young", "unneeded", "unknown"]

_LOCAL: Final = "file"


@dataclass(frozen=True, slots=True)
class HoldInfo:
    """A retention hold, and whether its holder exists.

    Attributes
    ----------
    name
        Name of its file.
    url
        URL of its file.
    batch
        The batch whose state it retains.
    holder
        URL of the savepoint or copy that needs it; None if unknown.
    created_ms
        Creation time in milliseconds since 1970; None if unknown.
    status
        ``needed``: its savepoint exists. ``young``: it is less than a day old, and its savepoint or copy may
        still be written. ``unneeded``: neither. ``unknown``: the holder cannot be checked.
    reason
        Reason for the status.
    """

    name: str
    url: str
    batch: int
    holder: str | None
    created_ms: int | None
    status: HoldStatus
    reason: str


def inspect_holds(path: str, *, checkpoints_dir: str | None = None) -> list[HoldInfo]:
    """Return all holds on the state of a query or savepoint, oldest version first."""
    return [info for _, info in _inspected(path, checkpoints_dir)]


def release_hold(
    path: str, name: str, *, dry_run: bool = False, checkpoints_dir: str | None = None
) -> HoldInfo:
    """Remove a hold that has no savepoint and is at least a day old; the next cleanup discards the version.

    Parameters
    ----------
    path
        The query's ``checkpointLocation``, or a savepoint.
    name
        Name of the hold's file.
    dry_run
        Check, remove nothing.

    Raises
    ------
    CheckpointNotFoundError
        If there is no such hold.
    IllegalStateError
        If something needs it, may need it, or cannot be checked.
    """
    holds = {hold.name: (hold, info) for hold, info in _inspected(path, checkpoints_dir)}
    if name not in holds:
        raise CheckpointNotFoundError(
            f"there is no hold {name!r} on the state of {path}, it has {', '.join(holds) or 'none'}. Use one "
            "of those."
        )
    hold, info = holds[name]
    if info.status != "unneeded":
        raise IllegalStateError(f"the hold {info.url} stays: {info.reason}. Nothing was removed.")
    if not dry_run:
        with failing_to("remove", hold.files, hold.path):
            # A savepoint that is published meanwhile finds its hold missing, and fails.
            hold.remove()
    return info


def _inspected(path: str, checkpoints_dir: str | None) -> list[tuple[Hold, HoldInfo]]:
    checkpoint = open_checkpoint(path, checkpoints_dir=checkpoints_dir)
    if not (holds := list_holds(checkpoint)):
        # Raises if this is not a checkpoint location.
        _ = checkpoint.query_id
        return []
    files, directory = holds[0].files, parent_of(holds[0].path)
    with failing_to("list the holds in", files, directory):
        modified = {status.path: status.modified for status in files.list_files(directory)}
    # Only if an age matters: it writes a probe file.
    now = functools.cache(lambda: storage_time(files, directory))
    return [(hold, _inspect(hold, modified.get(hold.path), now)) for hold in holds]


def _inspect(hold: Hold, modified: float | None, now: Callable[[], float]) -> HoldInfo:
    holder = hold.holder()
    status, reason = _status(hold, holder, modified, now)
    created = None if modified is None else int(modified * 1000)
    return HoldInfo(hold.name, hold.url, hold.version - 1, holder, created, status, reason)


def _status(
    hold: Hold, holder: str | None, modified: float | None, now: Callable[[], float]
) -> tuple[HoldStatus, str]:
    is_temporary = is_temporary_hold(hold.name)
    if not is_temporary:
        if holder is None:
            return (
                "unknown",
                "it does not name its savepoint. Delete the file by hand if no pointer savepoint needs it",
            )
        try:
            return "needed", f"{load_savepoint(holder)} needs it. Dispose of that instead"
        except SavepointNotFoundError:
            files, directory = open_file_system(holder)
            target = parent_of(directory.rstrip("/"))
            with failing_to("look for", files, target):
                is_mounted = files.scheme != _LOCAL or files.is_directory(target)
            if not is_mounted:
                return "unknown", (
                    f"{holder} cannot be checked, as this machine has no directory {target}. Run the command "
                    "where it is mounted, or create the directory if it does not exist any more"
                )
        except StateStoreError as error:
            return "unknown", f"its savepoint cannot be checked: {error}"
    if modified is None or now() - modified < DAY:
        return "young", (
            f"it is less than a day old, and {holder or 'its holder'} may still be written. Try again when "
            "it is older"
        )
    if is_temporary:
        return "unneeded", "the process that held it has ended"
    return "unneeded", f"there is no savepoint {holder}: it was not completed, or it was moved"
