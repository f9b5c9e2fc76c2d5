"""Errors for missing checkpoint versions list what the store's directory contains instead."""

from __future__ import annotations

import contextlib
import re
from typing import Final

from spark_statestore.errors import (
    CheckpointError,
    CheckpointIOError,
    CheckpointNotFoundError,
    ForeignCheckpointError,
    StateLostError,
    StateStoreError,
)
from spark_statestore.files import FileSystem, open_file_system
from spark_statestore.storage import METADATA_FILE_NAME, CheckpointName

_ID_REMEDY: Final = (
    "Set spark.sql.streaming.stateStore.checkpointFormatVersion back to 2, the value that the query started "
    "with. A program that opens the store itself passes the id that the commit of the version returned, "
    "which is in the query's commits/ as well. Spark 4.0's state data source passes none: read this "
    "checkpoint with Spark 4.1 or later."
)

# Files of Spark's own providers: <version>[_<id>].<kind>.
_SPARKS_FILES = re.compile(r"\d+(_[0-9A-Za-z-]+)?\.(delta|snapshot|zip|changelog)")


def missing_version(
    files: FileSystem, directory: str, where: str, name: CheckpointName, attempt_id: str | None = None
) -> CheckpointError:
    """Build the error for a missing version, or for the requested attempt at it; `where` has its location."""
    try:
        names, foreign = _listed(files, directory)
    except OSError as error:
        return CheckpointIOError(
            f"{where} does not exist, and the store's other versions cannot be listed: {error}"
        )
    if foreign:
        return _foreign(where, foreign)
    subject = f"{where} (attempt {attempt_id})" if attempt_id else where
    if not names:
        return CheckpointNotFoundError(
            f"{subject} does not exist; the store has no version at all. Either the query had another "
            "storage or checkpointsDir, or its checkpoint was copied without it: restore the option, or "
            "restore the state from a backup. Or it had storage=memory without checkpointsDir: then only the "
            "driver of that application had the state, which is lost if that application has ended."
        )
    ids = [listed.id for listed in names if listed.version == name.version]
    if name.id is None and ids and None not in ids:
        return CheckpointNotFoundError(
            f"{where} was requested without a checkpoint id, and the store has this version only with an id "
            f"({', '.join(map(str, ids))}), as Spark's checkpoint format v2 names versions. {_ID_REMEDY}"
        )
    if name.id is not None and None in ids:
        return CheckpointNotFoundError(
            f"{where} was requested with a checkpoint id, and the store has this version without one, as "
            "Spark's checkpoint format v1 names versions. Set "
            "spark.sql.streaming.stateStore.checkpointFormatVersion back to 1."
        )
    return CheckpointNotFoundError(
        f"{subject} does not exist; the store has the versions {names[0].version} to {names[-1].version}. It "
        "was deleted, is older than the retained ones (spark.sql.streaming.minBatchesToRetain), "
        "the checkpoint was copied without it, or the query was started with another storage or "
        "checkpointsDir. Restore it from a backup, set the option back, or start from an existing version."
    )


def missing_on_driver(
    where: str, name: CheckpointName, driver_range: tuple[int, int] | None, url: str
) -> CheckpointError:
    """Build the error for a missing version of a store whose checkpoints are on the driver.

    The driver has the versions of `driver_range`, if any; with ``storage=filesystem`` the store's directory
    would be `url`.
    """
    if driver_range is not None and name.id is None and driver_range[0] <= name.version <= driver_range[1]:
        return CheckpointNotFoundError(
            f"{where} was requested without a checkpoint id, and the driver, which has the versions "
            f"{driver_range[0]} to {driver_range[1]} of this store, has it only with one, as Spark's "
            f"checkpoint format v2 names versions. {_ID_REMEDY}"
        )
    if driver_range is not None:
        return CheckpointNotFoundError(
            f"{where} is not kept on the driver, which has the versions {driver_range[0]} to "
            f"{driver_range[1]} of this store. It is older than the retained ones "
            "(spark.sql.streaming.minBatchesToRetain), or was kept by an application that has "
            "ended. Start from an existing version."
        )
    # The state may exist in files, if only the option was changed.
    with contextlib.suppress(StateStoreError, OSError):
        files, directory = open_file_system(url, retries=0)
        names, foreign = _listed(files, directory)
        if foreign:
            return _foreign(where, foreign)
        if names:
            return CheckpointNotFoundError(
                f"{where} is not kept on the driver: the state of this query is in files, "
                f"{files.url(directory)} has the versions {names[0].version} to {names[-1].version}, and "
                "this session has the option storage=memory. Set "
                "spark.sql.streaming.stateStore.backend.storage back to filesystem. Nothing was changed."
            )
    return StateLostError(
        f"{where} was kept only on the driver of an application that has ended, and the driver of this one "
        "has no version of the store. The option storage=memory without checkpointsDir keeps state only "
        "until its application ends; to keep it longer, set checkpointsDir, or storage=filesystem, before "
        "the query starts. If this query had a checkpointsDir until now, its state is there: restore the "
        "option."
    )


def _listed(files: FileSystem, directory: str) -> tuple[list[CheckpointName], list[str]]:
    """List the versions in a store's directory, and the files of other providers there."""
    start = directory.rstrip("/") + "/"
    paths = [status.path[len(start) :] for status in files.list_files(directory)]
    names = [
        name
        for path in paths
        if path.endswith(f"/{METADATA_FILE_NAME}")
        and (name := CheckpointName.parse(path.removesuffix(f"/{METADATA_FILE_NAME}"))) is not None
    ]
    foreign = sorted(path for path in paths if _SPARKS_FILES.fullmatch(path))
    return sorted(names, key=lambda name: (name.version, name.id or "")), foreign


def _foreign(where: str, files: list[str]) -> ForeignCheckpointError:
    return ForeignCheckpointError(
        f"{where} was written by another state store provider: its files there are {files[0]} and "
        f"{len(files) - 1} more. A query keeps the provider of its first batch: set "
        "spark.sql.streaming.stateStore.providerClass back to that one, or let this query start in a new "
        "checkpointLocation. Nothing was changed."
    )
