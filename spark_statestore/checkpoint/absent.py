"""Why a version of a store is not there, as far as what lies beside it tells."""

from __future__ import annotations

import re

from spark_statestore.checkpoint.files import FileSystem
from spark_statestore.checkpoint.storage import METADATA_FILE_NAME
from spark_statestore.errors import (
    CheckpointError,
    CheckpointIOError,
    CheckpointNotFoundError,
    ForeignCheckpointError,
    StateLostError,
)

__all__ = ["absent_version", "not_kept"]

# Files of Spark's own providers: <version>[_<id>].<kind>.
_SPARKS_FILES = re.compile(r"\d+(_[0-9A-Za-z-]+)?\.(delta|snapshot|zip|changelog)")


def absent_version(files: FileSystem, directory: str, where: str, attempt: str | None) -> CheckpointError:
    """The error to raise.

    Parameters
    ----------
    directory
        The store's.
    where
        The version and its place, for the message.
    attempt
        The attempt at it that was looked for, None for the one that counts.
    """
    start = directory.rstrip("/") + "/"
    try:
        listed = [status.path[len(start) :] for status in files.list_files(directory)]
    except OSError as error:
        return CheckpointIOError(
            f"{where} is not there, and what else the store has cannot be listed: {error}"
        )
    foreign = sorted(file for file in listed if _SPARKS_FILES.fullmatch(file))
    if foreign:
        return ForeignCheckpointError(
            f"{where} was written by another state store provider: there are {foreign[0]} and "
            f"{len(foreign) - 1} more of its files. A query keeps the provider of its first batch: set "
            "spark.sql.streaming.stateStore.providerClass back to that one, or let this query start in a new "
            "checkpointLocation. Nothing was changed."
        )
    present = sorted(
        int(match[1])
        for file in listed
        if (match := re.fullmatch(rf"chk-(\d+)(?:_\w+)?/{METADATA_FILE_NAME}", file))
    )
    has = f"the versions {present[0]} to {present[-1]}" if present else "no version at all"
    which = f"{where} (attempt {attempt})" if attempt else where
    return CheckpointNotFoundError(
        f"{which} is not there; the store has {has}. It was removed, is older than what is retained "
        "(spark.sql.streaming.stateStore.backend.numRetained), the checkpoint was copied without it, or the "
        "query was started with another storage or checkpointsDir. Copy it back from a backup, set the option as it was, "
        "or start from a version that is there."
    )


def not_kept(where: str, kept: tuple[int, int] | None) -> CheckpointError:
    """The error to raise for a version that the driver was to keep.

    Parameters
    ----------
    where
        The version and its place, for the message.
    kept
        The first and the last version of the store that the driver keeps, None if there are none.
    """
    if kept is not None:
        return CheckpointNotFoundError(
            f"{where} is not kept on the driver, which keeps the versions {kept[0]} to {kept[1]} of this store. It is "
            "older than what is retained (spark.sql.streaming.stateStore.backend.numRetained), or an application that "
            "has ended kept it. Start from a version that is there."
        )
    return StateLostError(
        f"{where} was kept only on the driver of an application that has ended, and the driver of this one keeps "
        "nothing of the store. The option storage=memory without checkpointsDir keeps nothing beyond its "
        "application; to survive that, set checkpointsDir, or storage=filesystem, before the query starts."
    )
