"""Rollback of a query to an earlier batch, in place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Final

from spark_statestore.errors import CorruptCheckpointError, QueryRunningError
from spark_statestore.files import join, parent_of
from spark_statestore.files.failures import failing_to
from spark_statestore.formats.metadata import parse_json
from spark_statestore.operator_state.query_operator_state import OPERATOR_STATE_DIR
from spark_statestore.query import sources
from spark_statestore.query.layout import (
    entry_before,
    new_rolled_back_directory,
    newest_operator_state,
    operator_states,
    replace_file,
    with_checksum,
)
from spark_statestore.query.lease import Lease
from spark_statestore.query.operators import SCHEMAS
from spark_statestore.query.query_checkpoint import (
    COMMITS,
    METADATA,
    OFFSETS,
    ROLLED_BACK,
    SOURCES,
    STATE,
    QueryCheckpoint,
)
from spark_statestore.query.running import ActivityCheck
from spark_statestore.query.store_snapshot import require_streams
from spark_statestore.storage import METADATA_FILE_NAME
from spark_statestore.store.healing import heal, readable_metadata
from spark_statestore.store.reader import damaged_streams

# Ranks in the order in which a batch's files are moved.
_FIRST: Final = 0
_LAST: Final = 9

_CREATED: Final = "_created"
"""File in a rollback's directory: JSON list of the paths that the rollback created."""


def rollback(
    path: str,
    batch: int,
    *,
    stopped: bool = False,
    dry_run: bool = False,
    checkpoints_dir: str | None = None,
) -> list[str]:
    """Roll a stopped query back, so that it continues after an earlier batch.

    A running query would not notice, and continue after its newest batch. So the rollback is refused if the
    query seems to run: if it runs in this process, adds to its logs while they are watched for 2 s, or if the
    newest entry is younger than 3 times the usual interval between its batches, at least 30 s and at most an
    hour. A query that waits for input cannot be distinguished from a stopped one. If the query turns out to
    run during the move, files are moved back.

    Log entries and metadata of later batches are moved to ``rolled-back/<time>/`` in the checkpoint location.
    No state is deleted: versions of later batches become unreferenced, and the query's retention deletes them
    in time. A pointer savepoint of such a version retains it.

    The query reads the input of later batches again, if its sources still have it, and its sink receives
    those batches again, under the same numbers. An idempotent sink that recognises batches by number, such as
    files or Delta Lake, skips them: roll it back as well, or see `begin_output` for files.

    An interrupted rollback leaves the query at one of the batches in between; repeat it.

    Parameters
    ----------
    path
        The query's ``checkpointLocation``.
    batch
        The batch that becomes the newest one. With the newest committed batch, only the uncommitted batch is
        removed from the logs.
    stopped
        The query is stopped: do not check its logs for activity.
    dry_run
        Return what would be moved, and move nothing.
    checkpoints_dir
        The option ``checkpointsDir`` of the query, if it was set.

    Returns
    -------
    list of str
        URLs of the moved files, in order.

    Raises
    ------
    CheckpointNotFoundError
        If the batch or its state is not retained. Nothing was changed.
    CorruptCheckpointError
        If a file that the query needs to continue from there is missing. Nothing was changed.
    QueryRunningError
        If the query seems to run. Nothing was changed, or all files were moved back.
    CheckpointError, StorageError
        If a file cannot be read or written.
    """
    # With fsync, a moved file survives a power loss at its old or its new place.
    checkpoint = QueryCheckpoint(path, checkpoints_dir=checkpoints_dir, fsync=True)
    activity = ActivityCheck(checkpoint)
    plan = _Plan(checkpoint, checkpoint.require_batch(batch))
    if not dry_run:
        activity.require_stopped(stopped=stopped)
        plan.execute(activity)
    return [checkpoint.files.url(checkpoint.path(name)) for name in plan.moved]


@dataclass(frozen=True, slots=True)
class _Cut:
    """The changes of a file source's log: files to move first, a file to write, files to move then."""

    before: list[str]
    compact: tuple[str, bytes] | None
    after: list[str]


class _Plan:
    def __init__(self, checkpoint: QueryCheckpoint, batch: int) -> None:
        self._checkpoint = checkpoint
        self._batch = batch
        self._require_state()
        self._logs = self._later_logs()
        self._cuts = list(self._source_cuts())

    @property
    def moved(self) -> list[str]:
        """Paths in the checkpoint location of the files to move."""
        return self._logs + [name for cut in self._cuts for name in cut.before + cut.after]

    def execute(self, activity: ActivityCheck) -> None:
        checkpoint = self._checkpoint
        names = self.moved
        if not names:
            return
        directory = new_rolled_back_directory(checkpoint)
        time = directory.rpartition("/")[2]
        created = [f"{OFFSETS}/{self._batch - 1}", *(cut.compact[0] for cut in self._cuts if cut.compact)]
        self._write_entry_before()
        # Copy everything before the first delete.
        copies = {}
        for name in names:
            for beside in with_checksum(checkpoint, name):
                copies[beside] = self._copy(beside, join(directory, beside))
        if created[1:]:
            _record_created(checkpoint, time, created[1:])
        with Lease(checkpoint) as lease:
            self._require_unchanged(activity, created)
            self._require_copied(copies)
            self._move(lease)
            self._require_unchanged(activity, created, removed=names, time=time)

    def _move(self, lease: Lease) -> None:
        """Remove the files that were copied."""
        checkpoint = self._checkpoint
        lease.renew()
        # Before the logs, so that no reader takes the batch for one of other partitions.
        partitions = checkpoint.offsets(self._batch).shuffle_partitions
        _describe_partitions(checkpoint, checkpoint.newest_partitions(), partitions)
        # After every step Spark can start from the checkpoint, at a batch in between: each batch's commit log
        # entry goes first, its offset log entry last. Surplus entries in a file source's log are harmless.
        self._remove(self._logs, lease)
        for cut in self._cuts:
            self._remove(cut.before, lease)
            if cut.compact is not None:
                name, data = cut.compact
                with failing_to("write", checkpoint.files, checkpoint.path(name)):
                    checkpoint.files.create(checkpoint.path(name), data)
            self._remove(cut.after, lease)

    def _require_unchanged(
        self, activity: ActivityCheck, created: list[str], removed: list[str] | None = None, time: str = ""
    ) -> None:
        """Raise if the query has written to its logs, after moving the removed files back."""
        added = activity.added(created, removed or ())
        if not added:
            return
        problem = (
            f"the query of {self._checkpoint.url} runs: it has written {', '.join(added)} during the rollback"
        )
        stop = "Stop the query, then try again"
        if removed is None:
            raise QueryRunningError(f"{problem}. {stop}; nothing was moved.")
        where = self._checkpoint.files.url(self._checkpoint.path(ROLLED_BACK, time))
        if again := sorted(set(added) & set(removed)):
            # It already continues from the rolled back batch: moving the entries back would mix two
            # histories.
            raise QueryRunningError(
                f"{problem}. It was started before the rollback ended, and has rewritten {again[0]}. {stop}, "
                f"and verify it; the moved files are in {where}."
            )
        undo_rollback(self._checkpoint, time)
        raise QueryRunningError(f"{problem}. The moved files were moved back. {stop}.")

    def _write_entry_before(self) -> None:
        files, path = self._checkpoint.files, self._checkpoint.path(OFFSETS, str(self._batch - 1))
        with failing_to("write", files, path):
            if self._batch > 0 and not files.exists(path):
                files.create(path, entry_before(self._checkpoint, self._batch).encode())

    def _require_state(self) -> None:
        """Raise unless all files of the batch's state exist, or others have the same state.

        Content is read only to find these.
        """
        for version in self._checkpoint.stores(self._batch):
            try:
                require_streams(self._checkpoint, version)
            except CorruptCheckpointError as error:
                store = self._checkpoint.open(version.store)
                try:
                    metadata = readable_metadata(store, version.name, version.attempt_id)
                    heal(store, version.name, metadata, damaged_streams(store, version.name, metadata))
                except CorruptCheckpointError:
                    raise error from None

    def _later_logs(self) -> list[str]:
        """Return the files of later batches, in the order in which they are removed."""
        checkpoint = self._checkpoint
        entries: list[tuple[int, int, str]] = []
        for rank, log in ((_FIRST, COMMITS), (_LAST, OFFSETS)):
            names = checkpoint.files_below(log)
            entries += ((int(name), rank, f"{log}/{name}") for name in names if name.isdigit())
        for operator in checkpoint.operators(self._batch):
            # One file per run, named by its first batch. Spark does not overwrite an existing one.
            directory = f"{STATE}/{operator.id}"
            runs = checkpoint.files_below(directory, "_metadata", "v2")
            entries += ((int(name), 2, f"{directory}/_metadata/v2/{name}") for name in runs if name.isdigit())
            for name in checkpoint.files_below(directory, SCHEMAS):
                number = name.rpartition("/")[2].partition("_")[0]
                if number.isdigit():
                    entries.append((int(number), 3, f"{directory}/{SCHEMAS}/{name}"))
        states = operator_states(checkpoint.files_below(OPERATOR_STATE_DIR))
        for operator_name, checkpoints in states.items():
            directory = f"{OPERATOR_STATE_DIR}/{operator_name}"
            newest_operator_state(checkpoints, self._batch, checkpoint.files.url(checkpoint.path(directory)))
            for state, names in checkpoints.items():
                for name in names:
                    rank = _FIRST if name == METADATA_FILE_NAME else 1
                    entries.append((state.version, rank, f"{directory}/{state.directory}/{name}"))
        later = [entry for entry in entries if entry[0] > self._batch]
        return [name for _, _, name in sorted(later, key=lambda entry: (-entry[0], *entry[1:]))]

    def _source_cuts(self) -> Iterator[_Cut]:
        checkpoint = self._checkpoint
        for source, offset in checkpoint.source_offsets(checkpoint.offsets(self._batch)).items():
            names = sources.log_files(checkpoint.files_below(SOURCES, source))
            last = sources.position(offset)
            if last is None or not sources.is_file_source(names, partial(checkpoint.read, SOURCES, source)):
                continue
            where = checkpoint.files.url(checkpoint.path(SOURCES, source))
            part = sources.cut(names, last, where)
            dropped = [f"{SOURCES}/{source}/{name}" for name in part.dropped]
            if part.compact is None:
                yield _Cut([], None, dropped)
                continue
            name, origin = part.compact
            data = sources.compacted(checkpoint.read(SOURCES, source, origin), last, join(where, origin))
            # Older files go before the new one is written: Spark derives the interval from the distance of
            # compacted files.
            older = [
                path
                for path, file in zip(dropped, part.dropped, strict=True)
                if sources.newest_entry(file) <= last
            ]
            newer = [path for path in dropped if path not in older]
            yield _Cut(older, (f"{SOURCES}/{source}/{name}", data), newer)

    def _copy(self, name: str, to: str) -> bytes:
        """Copy a file, and return the digest of its content."""
        files = self._checkpoint.files
        data = self._checkpoint.read(name)
        with failing_to("write", files, to):
            files.make_directory(parent_of(to))
            files.create(to, data)
        return sha256(data).digest()

    def _require_copied(self, copies: Mapping[str, bytes]) -> None:
        """Raise if another process has changed a file since it was copied."""
        for name, digest in copies.items():
            data = self._checkpoint.read_if_present(name)
            if data is None or sha256(data).digest() != digest:
                raise QueryRunningError(
                    f"another process changes {self._checkpoint.url}: it has replaced {name} during the "
                    "rollback. Let it end, then try again; nothing was moved."
                )

    def _remove(self, names: list[str], lease: Lease) -> None:
        for name in names:
            for beside in with_checksum(self._checkpoint, name):
                lease.renew()
                path = self._checkpoint.path(beside)
                with failing_to("delete", self._checkpoint.files, path):
                    self._checkpoint.files.delete(path)
                    self._checkpoint.files.sync_directory(parent_of(path))


def _record_created(checkpoint: QueryCheckpoint, time: str, names: Sequence[str]) -> None:
    """Record the files that a rollback is about to create."""
    path = join(checkpoint.path(ROLLED_BACK), time, _CREATED)
    with failing_to("write", checkpoint.files, path):
        checkpoint.files.create(path, json.dumps(list(names)).encode())


def undo_rollback(checkpoint: QueryCheckpoint, time: str) -> list[str]:
    """Move back the files of a rollback, by its directory in ``rolled-back``, and return their paths.

    Existing files are not replaced. Log entries are moved last and in order, so that Spark can start from the
    checkpoint after every step.
    """
    files, start = checkpoint.files, join(checkpoint.path(ROLLED_BACK), time)
    names = _below(checkpoint, start)
    restored_names = []
    described = checkpoint.newest_partitions()
    for name in sorted(names, key=_rank):
        path = checkpoint.path(name)
        if name == _CREATED:
            continue
        with failing_to("move back", files, path):
            if not files.exists(path):
                files.make_directory(parent_of(path))
                files.create(path, files.read(join(start, name)))
                restored_names.append(name)
    if _CREATED in names:
        for name in _created(checkpoint, join(start, _CREATED)):
            path = checkpoint.path(name)
            with failing_to("delete", files, path):
                if name not in names and files.exists(path):
                    files.delete(path)
    _describe_partitions(checkpoint, described, checkpoint.newest_partitions())
    return restored_names


def _describe_partitions(checkpoint: QueryCheckpoint, described: int | None, number: int | None) -> None:
    """Replace a number of partitions in version 1 of the operators' metadata, which has no history."""
    if described == number or number is None:
        return
    for path, operator in checkpoint.operator_files(as_written=True):
        name = path[len(checkpoint.root) + 1 :]
        if operator.partitions != described or name.rpartition("/")[2] != METADATA:
            continue
        replace_file(checkpoint, name, operator.with_partitions(number).encode())


def find_rollback(checkpoint: QueryCheckpoint, gaps: Mapping[str, Sequence[int]]) -> str | None:
    """Return the directory of the rollback that moved exactly the missing entries of each log.

    The directory is in ``rolled-back``.
    """
    start = checkpoint.path(ROLLED_BACK)
    moved: dict[str, dict[str, set[int]]] = {}
    for path in _below(checkpoint, start):
        time, _, name = path.partition("/")
        log, _, number = name.rpartition("/")
        if log in (OFFSETS, COMMITS) and number.isdigit():
            moved.setdefault(time, {}).setdefault(log, set()).add(int(number))
    missing_by_log = {log: set(missing) for log, missing in gaps.items()}
    fitting = [time for time, logs in moved.items() if logs == missing_by_log]
    return max(fitting, default=None)


def _below(checkpoint: QueryCheckpoint, directory: str) -> list[str]:
    with failing_to("list", checkpoint.files, directory):
        return [status.path[len(directory) + 1 :] for status in checkpoint.files.list_files(directory)]


def _created(checkpoint: QueryCheckpoint, path: str) -> list[str]:
    with failing_to("read", checkpoint.files, path):
        data = checkpoint.files.read(path)
    try:
        names: list[str] = parse_json(data)
        # Rollbacks create only files in sources' logs, so nothing else is deleted.
        if not all(name.startswith(f"{SOURCES}/") for name in names):
            raise ValueError(f"{names!r:.200} are not all names below {SOURCES}")
    except (AttributeError, TypeError, ValueError) as error:
        raise CorruptCheckpointError(
            f"{checkpoint.files.url(path)} is not a list of the files that a rollback created: {error}. Copy "
            "the files beside it back by hand."
        ) from error
    return names


def _rank(name: str) -> tuple[int, int, int, str]:
    """Order sources' logs first, then state metadata, then each batch's offset log and commit log entries."""
    directory, _, file = name.rpartition("/")
    number = file.removeprefix(".").removesuffix(".crc")
    if directory in (OFFSETS, COMMITS) and number.isdigit():
        return (2, int(number), int(directory == COMMITS), file)
    return (int(not directory.startswith(SOURCES)), 0, int(file == METADATA_FILE_NAME), name)
