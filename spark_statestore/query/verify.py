"""Verification of a query's checkpoint: every byte that the query needs to continue is read and checked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from spark_statestore.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    ForeignCheckpointError,
    StateStoreError,
    restore_from_backup,
)
from spark_statestore.files import FileStatus, FileSystem, open_file_system, split_url
from spark_statestore.files.failures import failing_to
from spark_statestore.operator_state.query_operator_state import OPERATOR_STATE_DIR, QueryOperatorState
from spark_statestore.query import sources
from spark_statestore.query.gaps import log_gaps
from spark_statestore.query.layout import path_in_its_file_system
from spark_statestore.query.logs import CommitEntry, OffsetEntry
from spark_statestore.query.operators import SCHEMAS, StatefulOperator
from spark_statestore.query.parallel import Progress, parallel_map
from spark_statestore.query.query_checkpoint import (
    COMMITS,
    METADATA,
    OFFSETS,
    SOURCES,
    STATE,
    QueryCheckpoint,
    StoreVersion,
    ranges,
)
from spark_statestore.query.savepoint_lookup import open_checkpoint
from spark_statestore.query.spark_files import check_log_entry, read_checked
from spark_statestore.storage import METADATA_FILE_NAME
from spark_statestore.storage.incremental_handle import ChainEntry
from spark_statestore.storage.operator_handles import OperatorStreamStateHandle
from spark_statestore.store.changelog import read_changes
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.healing import Damage, heal, readable_metadata
from spark_statestore.store.metadata import CheckpointMetadata, StoreId

__all__ = ["Problem", "Verification", "Verifier", "verify"]


@dataclass(frozen=True, slots=True)
class Problem:
    """A broken part of a checkpoint.

    Attributes
    ----------
    what
        The broken part, such as a store or one of Spark's logs.
    kind
        ``missing``; ``damaged``: it differs from what was written; or ``unreadable``: storage failed, or
        another release wrote it, so that its state is unknown.
    message
        Location, cause and remedy.
    covered
        True if other files have the same state, so that the query continues without it and writes it again.
    """

    what: str
    kind: Literal["missing", "damaged", "unreadable"]
    message: str
    covered: bool = False

    @classmethod
    def from_error(cls, subject: str, error: Exception) -> Problem:
        """Build the problem for an error."""
        is_expected = isinstance(error, StateStoreError | OSError)
        if isinstance(error, FileNotFoundError):
            return cls(subject, "missing", str(error))
        if isinstance(error, CorruptCheckpointError):
            return cls(subject, "damaged", str(error))
        # Other exceptions come from unexpected content, so from damage.
        return cls(subject, "unreadable", str(error)) if is_expected else cls(subject, "damaged", repr(error))


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of the verification of a batch.

    Attributes
    ----------
    path
        The checkpoint location.
    batch
        The batch.
    stores, files, bytes
        Number of stores, of files and parts of files, and of their bytes, that were read and are intact.
    problems
        The broken parts.
    """

    path: str
    batch: int
    stores: int
    files: int
    bytes: int
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """True if the query can continue from this batch."""
        return all(problem.covered for problem in self.problems)


def verify(
    path: str,
    batch: int | None = None,
    *,
    checkpoints_dir: str | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Read and check every byte that a query needs to continue from a batch.

    These are Spark's logs, the sources' logs, the metadata of each stateful operator, each store's version
    with all its streams, and the operator state of the query's own code. Broken parts are in the result; an
    error means that there is nothing to verify.

    Parameters
    ----------
    path
        The checkpoint location, or the directory of a savepoint.
    batch
        By default the newest one, with the log entries of an uncommitted batch after it.
    checkpoints_dir
        The option ``checkpointsDir`` of the query, if it was set.
    progress
        Called with the number of stores done and their total.

    Raises
    ------
    CheckpointNotFoundError
        If there is no such checkpoint or batch.
    ForeignCheckpointError
        If another provider wrote the query's state.
    CheckpointIOError
        If its directory cannot be listed.
    StorageError
        If its file system cannot be used.
    """
    checkpoint = open_checkpoint(path, checkpoints_dir=checkpoints_dir)
    return Verifier(checkpoint).verify(batch, progress)


class Verifier:
    """Verification of several batches of a checkpoint; shared streams are read once."""

    def __init__(self, checkpoint: QueryCheckpoint) -> None:
        self.checkpoint = checkpoint
        self._streams: dict[str, StateStoreError | None] = {}
        self._lock = threading.Lock()

    def verify(
        self, batch: int | None = None, progress: Progress | None = None, *, begun: bool = True
    ) -> Verification:
        """Verify one batch, see `verify`.

        An uncommitted batch is a part of the newest one if it has `begun`.
        """
        batch = self.checkpoint.require_batch(batch)
        return _BatchVerification(self, batch, begun=begun).result(progress)

    def read_stream(self, stream: OperatorStreamStateHandle, where: str) -> None:
        """Read a stream to its end.

        A broken one raises the same error for each version that references it.
        """
        name = stream.stream_state_handle_id
        with self._lock:
            is_known = name in self._streams
            error = self._streams.get(name)
        if not is_known:
            try:
                for _ in read_changes(stream, where):
                    pass
            except StateStoreError as stream_error:
                error = stream_error
            with self._lock:
                self._streams[name] = error
        if error is not None:
            raise error


class _BatchVerification:
    """Verification of one batch."""

    def __init__(self, verifier: Verifier, batch: int, *, begun: bool) -> None:
        self._verifier = verifier
        self._begun = begun
        self._checkpoint = verifier.checkpoint
        self._batch = batch
        self._problems: list[Problem] = []
        self._stores = self._files = self._bytes = 0
        self._lock = threading.Lock()

    def result(self, progress: Progress | None) -> Verification:
        if self._spark_file("the query", METADATA) is not None:
            with self._recording_problem("the query"):
                _ = self._checkpoint.query_id
        self._check_sources(self._check_logs())
        stores = self._check_operators()
        # For stateless queries, Spark can be configured to log some batches only.
        if stores:
            self._check_gaps()
        parallel_map(self._check_store, stores, progress)
        self._check_operator_state()
        problems = tuple(sorted(self._problems, key=lambda problem: problem.what))
        return Verification(
            self._checkpoint.url, self._batch, self._stores, self._files, self._bytes, problems
        )

    def _check_logs(self) -> OffsetEntry | None:
        """Check the log entries that Spark reads at start, and return the newest one."""
        entries = [self._batch]
        is_newest = self._begun and self._batch == self._checkpoint.newest_batch()
        # Spark continues from the offsets of the batch before. A rollback ensures that there is such an
        # entry.
        before = self._checkpoint.path(OFFSETS, str(self._batch - 1))
        with failing_to("look for", self._checkpoint.files, before):
            if self._batch > 0 and (is_newest or self._checkpoint.files.exists(before)):
                entries.insert(0, self._batch - 1)
        # Spark repeats an uncommitted batch with its logged offsets. A committed batch always has offsets.
        if is_newest:
            entries += [number for number in self._checkpoint.logged_batches() if number > self._batch]
        last = None
        for number in entries:
            data = self._spark_file(f"the offset log, batch {number}", OFFSETS, str(number))
            if data is not None:
                with self._recording_problem(f"the offset log, batch {number}"):
                    last = OffsetEntry.decode(data, self._url(OFFSETS, str(number)))
        data = self._spark_file(f"the commit log, batch {self._batch}", COMMITS, str(self._batch))
        if data is not None:
            with self._recording_problem(f"the commit log, batch {self._batch}"):
                CommitEntry.decode(data, self._url(COMMITS, str(self._batch)))
        return last

    def _check_gaps(self) -> None:
        """Check that the logs have every batch between their oldest and newest one."""
        is_newest = self._begun and self._batch == self._checkpoint.newest_batch()
        with self._recording_problem("the logs"):
            for log, missing in log_gaps(self._checkpoint, None if is_newest else self._batch).items():
                subject = f"the {'offset' if log == OFFSETS else 'commit'} log"
                reported = {problem.what for problem in self._problems}
                unreported = [number for number in missing if f"{subject}, batch {number}" not in reported]
                if unreported:
                    self._problems.append(Problem(subject, "missing", self._gap_message(log, unreported)))

    def _gap_message(self, log: str, missing: list[int]) -> str:
        batches = f"batch{'es' if len(missing) > 1 else ''} {ranges(missing)}"
        return (
            f"{self._url(log)} has no entry of {batches}, and has entries of earlier and later batches. "
            "Spark leaves no gaps: entries were removed by hand, or the query ran while it was rolled back. "
            "Stop the query and repair it, or restore the entries from a backup."
        )

    def _check_sources(self, offsets: OffsetEntry | None) -> None:
        files: dict[str, list[str]] = {}
        with self._recording_problem("the sources"):
            for name in self._checkpoint.files_below(SOURCES):
                source, _, file = name.partition("/")
                files.setdefault(source, []).append(file)
        positions: dict[str, str] = {}
        if offsets is not None:
            with self._recording_problem("the sources"):
                positions = self._checkpoint.source_offsets(offsets)
        for source in sorted(files.keys() | positions.keys()):
            names = files.get(source, [])
            subject = f"source {source}"
            with self._recording_problem(subject):
                offset = positions.get(source, "")
                last = sources.position(offset)
                # Only the file source writes such offsets; a plain number may be another source's.
                if last is not None and ("logOffset" in offset or self._is_file_log(source, names)):
                    for name in self._needed(source, names, last):
                        if (data := self._spark_file(subject, SOURCES, source, name)) is not None:
                            check_log_entry(data, self._url(SOURCES, source, name))
                else:
                    for name in names:
                        self._spark_file(subject, SOURCES, source, name)

    def _is_file_log(self, source: str, names: list[str]) -> bool:
        return sources.is_file_source(
            sources.log_files(names), partial(self._checkpoint.read, SOURCES, source)
        )

    def _needed(self, source: str, names: list[str], last: int) -> list[str]:
        """Return the files with the entries up to the last one that the batch has read."""
        try:
            part = sources.cut(names, last, self._url(SOURCES, source))
        except CorruptCheckpointError as error:
            raise CheckpointNotFoundError(str(error)) from error
        if part.compact is not None:
            return [part.compact[1]]
        # Newest first; Spark does not read files older than a compacted one.
        oldest = next(
            (number for number, name in enumerate(part.unchanged_files) if name.endswith(".compact")),
            len(part.unchanged_files),
        )
        return list(part.unchanged_files[: oldest + 1])

    def _check_operators(self) -> list[StoreVersion]:
        """Check the operators' metadata and return their stores; none if the metadata cannot be read."""
        stores: list[StoreVersion] = []
        with self._recording_problem("the operators"):
            for path, operator in self._checkpoint.operator_files(self._batch):
                self._read(f"operator {operator.id}", path)
                self._check_schemas(operator)
                self._check_partitions(operator)
            stores += self._checkpoint.stores(self._batch)
        return stores

    def _check_schemas(self, operator: StatefulOperator) -> None:
        subject = f"the schemas of operator {operator.id}"
        for url in operator.schema_files:
            with self._recording_problem(subject):
                files, path = self._schema_file(operator, url)
                self._count(len(read_checked(files, path)))
        for store in operator.stores if not operator.schema_files else ():
            directories = StoreId(operator.id, 0, store.name).directories
            path = self._checkpoint.path(STATE, *directories, "_metadata", "schema")
            # Spark recreates a missing one.
            with self._recording_problem(subject):
                if self._checkpoint.files.exists(path):
                    self._read(subject, path)

    def _schema_file(self, operator: StatefulOperator, url: str) -> tuple[FileSystem, str]:
        """Return the file system and path of a schema file."""
        checkpoint = self._checkpoint
        below = operator.below_its_schemas(url)
        if below is not None and checkpoint.files.exists(checkpoint.path(METADATA_FILE_NAME)):
            # A savepoint may have been moved; a restore rewrites the URLs.
            return checkpoint.files, checkpoint.path(STATE, str(operator.id), SCHEMAS, below)
        if checkpoint.files.scheme == "file" or split_url(url)[0] != "file":
            return open_file_system(url)
        # Spark resolves a path without a scheme in the file system of the checkpoint.
        bucket = checkpoint.root.removesuffix(path_in_its_file_system(checkpoint.url))
        return checkpoint.files, bucket + url

    def _check_partitions(self, operator: StatefulOperator) -> None:
        """Compare the partitions in the commit log with those of the operator."""
        ids = self._checkpoint.commit(self._batch).state_ids
        if ids is None:
            return
        named = len(ids.get(operator.id, ()))
        if named != operator.partitions and not (named == 1 and operator.may_be_single):
            raise CorruptCheckpointError(
                f"the commit log of {self._checkpoint.url} has state of {named} partitions of operator "
                f"{operator.id} ({operator.name}) for batch {self._batch}, but the operator has "
                f"{operator.partitions}. " + restore_from_backup("the right files")
            )

    def _check_store(self, version: StoreVersion) -> None:
        with self._recording_problem(str(version.store)):
            versions = self._checkpoint.open(version.store)
            metadata = readable_metadata(versions, version.name, version.attempt_id)
            self._count(versions.files.size(versions.metadata_path(version.name)))
            damage: dict[ChainEntry, CheckpointNotFoundError | CorruptCheckpointError] = {}
            for entry in metadata.handle:
                try:
                    self._check_stream(entry, versions.where(version.name))
                except (CheckpointNotFoundError, CorruptCheckpointError) as error:
                    damage[entry] = error
            if damage:
                self._add_covered(versions, version, metadata, damage)
                return
            with self._lock:
                self._stores += 1

    def _check_stream(self, entry: ChainEntry, where: str) -> None:
        try:
            self._verifier.read_stream(entry.state, where)
        except FileNotFoundError as error:
            raise CheckpointNotFoundError(
                f"{where} needs the state stream {entry.state.stream_state_handle_id}, which is missing. "
                + restore_from_backup()
            ) from error
        self._count(entry.state.state_size)

    def _add_covered(
        self,
        versions: StoreDirectory,
        version: StoreVersion,
        metadata: CheckpointMetadata,
        damage: Damage,
    ) -> None:
        """Add a problem for each damaged stream if others have the same state, else raise the first one."""
        healed = heal(versions, version.name, metadata, damage)
        instead = ", ".join(
            entry.state.stream_state_handle_id
            for entry in healed.handle
            if entry not in metadata.handle.entries
        )
        for error in damage.values():
            problem = Problem.from_error(str(version.store), error)
            message = (
                f"{problem.message} It is covered: the query is started with the same state from "
                f"{instead or 'the other streams'}, and then writes a full snapshot."
            )
            with self._lock:
                self._problems.append(replace(problem, message=message, covered=True))

    def _check_operator_state(self) -> None:
        directory = self._checkpoint.path(OPERATOR_STATE_DIR)
        sizes: dict[str, dict[str, int]] = {}
        with self._recording_problem("the operator state"):
            for status in self._list(directory):
                name, _, below = status.path[len(directory) + 1 :].partition("/")
                sizes.setdefault(name, {})[below] = status.size
        for name in sorted(sizes):
            with self._recording_problem(f"the operator state {name!r}"):
                directories = QueryOperatorState(self._checkpoint.url, name).verify(self._batch)
                files = sizes[name].items()
                self._count(*(size for below, size in files if below.partition("/")[0] in directories))

    def _spark_file(self, subject: str, *names: str) -> bytes | None:
        return self._read(subject, self._checkpoint.path(*names))

    def _read(self, subject: str, path: str) -> bytes | None:
        data = None
        with self._recording_problem(subject):
            data = read_checked(self._checkpoint.files, path)
            self._count(len(data))
        return data

    def _list(self, directory: str) -> Iterator[FileStatus]:
        with failing_to("list", self._checkpoint.files, directory):
            yield from self._checkpoint.files.list_files(directory)

    def _url(self, *names: str) -> str:
        return self._checkpoint.files.url(self._checkpoint.path(*names))

    def _count(self, *sizes: int) -> None:
        with self._lock:
            self._files += len(sizes)
            self._bytes += sum(sizes)

    @contextmanager
    def _recording_problem(self, subject: str) -> Iterator[None]:
        """Record an error in the block as a problem, and continue."""
        try:
            yield
        except ForeignCheckpointError:
            raise
        except (StateStoreError, OSError, KeyError, IndexError, TypeError, ValueError) as error:
            # The last four are raised where Spark's files contradict each other.
            problem = Problem.from_error(subject, error)
            with self._lock:
                if problem not in self._problems:
                    self._problems.append(problem)
