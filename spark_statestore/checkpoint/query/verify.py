"""Whether a query can go on from its checkpoint: every byte that it needs is read and checked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from spark_statestore.checkpoint.files import FileStatus, FileSystem, open_file_system, split_url
from spark_statestore.checkpoint.files.failures import failing_to
from spark_statestore.checkpoint.metadata import StoreId
from spark_statestore.checkpoint.query import sources
from spark_statestore.checkpoint.query.checkpoint import (
    COMMITS,
    METADATA,
    OFFSETS,
    SOURCES,
    STATE,
    QueryCheckpoint,
    StoreVersion,
)
from spark_statestore.checkpoint.query.layout import list_below, path_in_its_file_system
from spark_statestore.checkpoint.query.logs import CommitEntry, OffsetEntry
from spark_statestore.checkpoint.query.operators import SCHEMAS, StatefulOperator
from spark_statestore.checkpoint.query.sparkfiles import check_log_entry, read_checked
from spark_statestore.checkpoint.query.workers import Progress, for_each
from spark_statestore.checkpoint.storage import METADATA_FILE_NAME
from spark_statestore.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    ForeignCheckpointError,
    StateStoreError,
)
from spark_statestore.state.changes import read_changes
from spark_statestore.state.handles.operator import OperatorStreamStateHandle
from spark_statestore.state.operator.query import OPERATOR_STATE_DIR, QueryOperatorState

__all__ = ["Problem", "Verification", "Verifier", "verify"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is broken.

    Attributes
    ----------
    what
        What it belongs to, such as a store or one of Spark's logs.
    kind
        ``missing``; ``damaged``: it is not what was written; or ``unreadable``: the storage failed, or
        something else than this release wrote it, so that nothing is known of it.
    message
        What is wrong, where, and what to do.
    """

    what: str
    kind: Literal["missing", "damaged", "unreadable"]
    message: str

    @classmethod
    def of(cls, what: str, error: Exception) -> Problem:
        """What an error says is wrong with something."""
        ours = isinstance(error, StateStoreError | OSError)
        if isinstance(error, FileNotFoundError):
            return cls(what, "missing", str(error))
        if isinstance(error, CorruptCheckpointError):
            return cls(what, "damaged", str(error))
        # What is none of ours came of content that nobody expects there.
        return cls(what, "unreadable", str(error)) if ours else cls(what, "damaged", repr(error))


@dataclass(frozen=True, slots=True)
class Verification:
    """What came of a look at all that one batch needs.

    Attributes
    ----------
    path
        The checkpoint location.
    batch
        The batch.
    stores, files, bytes
        Stores, files and parts of files, and their bytes, that were read and are sound.
    problems
        What is not.
    """

    path: str
    batch: int
    stores: int
    files: int
    bytes: int
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether the query can go on from this batch."""
        return not self.problems


def verify(
    path: str,
    batch: int | None = None,
    *,
    checkpoints_dir: str | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Read and check every byte that a query needs to go on from a batch.

    These are Spark's logs, the sources' logs, the description of each stateful operator, each store's
    version with all the streams that it consists of, and the operator state of the query's own code.
    Nothing is changed. What is broken is in the result; an error means that there is nothing to verify.

    Parameters
    ----------
    path
        The checkpoint location, or the directory of a savepoint.
    batch
        By default the newest one, with what the batch after it has noted already.
    checkpoints_dir
        The option ``checkpointsDir`` of the query, if it was set.
    progress
        Told how many stores are done, and of how many.

    Raises
    ------
    CheckpointNotFoundError
        If there is no checkpoint, or not of that batch.
    ForeignCheckpointError
        If another provider keeps the query's state.
    CheckpointIOError
        If its directory cannot be listed.
    StorageError
        If its file system cannot be used.
    """
    # A pointer savepoint knows where its state is.
    from spark_statestore.savepoint.savepoint import open_checkpoint

    checkpoint = open_checkpoint(path, checkpoints_dir=checkpoints_dir)
    return Verifier(checkpoint).verify(batch, progress)


class Verifier:
    """Verifies batches of a checkpoint, reading what several of them share once.

    Parameters
    ----------
    checkpoint
        The checkpoint.
    """

    def __init__(self, checkpoint: QueryCheckpoint) -> None:
        self.checkpoint = checkpoint
        self._streams: dict[str, StateStoreError | None] = {}
        self._lock = threading.Lock()

    def verify(
        self, batch: int | None = None, progress: Progress | None = None, *, begun: bool = True
    ) -> Verification:
        """Verify one batch, see `verify`.

        Parameters
        ----------
        begun
            Whether what comes after the newest batch counts as a part of it: the batch that Spark has begun.
        """
        batch = self.checkpoint.require_batch(batch)
        return _Look(self, batch, begun=begun).result(progress)

    def read_stream(self, stream: OperatorStreamStateHandle, where: str) -> None:
        """Read a stream to its end.

        Raises
        ------
        StateStoreError
            If it is broken; the same error for each version that needs it.
        OSError
            If it cannot be read.
        """
        name = stream.stream_state_handle_id
        with self._lock:
            known = name in self._streams
            error = self._streams.get(name)
        if not known:
            try:
                for _ in read_changes(stream, where):
                    pass
            except StateStoreError as found:
                error = found
            with self._lock:
                self._streams[name] = error
        if error is not None:
            raise error


class _Look:
    """One batch that is being verified."""

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
            with self._noting("the query"):
                _ = self._checkpoint.query_id
        self._check_sources(self._check_logs())
        stores = self._check_operators()
        for_each(self._check_store, stores, progress)
        self._check_operator_state()
        problems = tuple(sorted(self._problems, key=lambda problem: problem.what))
        return Verification(
            self._checkpoint.url, self._batch, self._stores, self._files, self._bytes, problems
        )

    def _check_logs(self) -> OffsetEntry | None:
        """Check the entries that Spark reads when it starts, and give the newest one of them."""
        entries = [self._batch]
        is_newest = self._begun and self._batch == self._checkpoint.newest_batch()
        # Spark goes on from what the batch before it had read. A roll-back sees to it that there is such an entry.
        before = self._checkpoint.path(OFFSETS, str(self._batch - 1))
        if self._batch > 0 and (is_newest or self._checkpoint.files.exists(before)):
            entries.insert(0, self._batch - 1)
        # A batch that was begun is run again as it was begun. That one was done and not begun cannot be.
        if is_newest:
            entries += [number for number in self._checkpoint.noted_batches() if number > self._batch]
        last = None
        for number in entries:
            data = self._spark_file(f"the offset log, batch {number}", OFFSETS, str(number))
            if data is not None:
                with self._noting(f"the offset log, batch {number}"):
                    last = OffsetEntry.decode(data, self._url(OFFSETS, str(number)))
        data = self._spark_file(f"the commit log, batch {self._batch}", COMMITS, str(self._batch))
        if data is not None:
            with self._noting(f"the commit log, batch {self._batch}"):
                CommitEntry.decode(data, self._url(COMMITS, str(self._batch)))
        return last

    def _check_sources(self, offsets: OffsetEntry | None) -> None:
        directory = self._checkpoint.path(SOURCES)
        found: dict[str, list[str]] = {}
        with self._noting("the sources"):
            for name in list_below(self._checkpoint.files, directory):
                source, _, file = name.partition("/")
                found.setdefault(source, []).append(file)
        positions: dict[str, str] = {}
        if offsets is not None:
            with self._noting("the sources"):
                positions = self._checkpoint.source_offsets(offsets)
        for source in sorted(found.keys() | positions.keys()):
            names = found.get(source, [])
            what = f"source {source}"
            with self._noting(what):
                offset = positions.get(source, "")
                last = sources.position(offset)
                # Only the file source writes such offsets; a number alone may be another source's.
                if last is not None and ("logOffset" in offset or self._is_file_log(source, names)):
                    for name in self._needed(source, names, last):
                        if (data := self._spark_file(what, SOURCES, source, name)) is not None:
                            check_log_entry(data, self._url(SOURCES, source, name))
                else:
                    for name in names:
                        self._spark_file(what, SOURCES, source, name)

    def _is_file_log(self, source: str, names: list[str]) -> bool:
        def read(name: str) -> bytes:
            path = self._checkpoint.path(SOURCES, source, name)
            with failing_to("read", self._checkpoint.files, path):
                return self._checkpoint.files.read(path)

        return sources.is_file_source(sources.log_files(names), read)

    def _needed(self, source: str, names: list[str], last: int) -> list[str]:
        """The files with the entries up to the last one that the batch has read."""
        try:
            part = sources.cut(names, last, self._url(SOURCES, source))
        except CorruptCheckpointError as error:
            raise CheckpointNotFoundError(str(error)) from error
        if part.compact is not None:
            return [part.compact[1]]
        # Newest first, and what was folded into one file is not read any more.
        folded = next(
            (number for number, name in enumerate(part.kept) if name.endswith(".compact")), len(part.kept)
        )
        return list(part.kept[: folded + 1])

    def _check_operators(self) -> list[StoreVersion]:
        """Check what is noted of operators, and give their stores as far as they are known."""
        stores: list[StoreVersion] = []
        with self._noting("the operators"):
            for path, operator in self._checkpoint.operator_files(self._batch):
                self._read(f"operator {operator.id}", path)
                self._check_schemas(operator)
                self._check_partitions(operator)
            stores += self._checkpoint.stores(self._batch)
        return stores

    def _check_schemas(self, operator: StatefulOperator) -> None:
        what = f"the schemas of operator {operator.id}"
        for url in operator.schema_files:
            with self._noting(what):
                files, path = self._schema_file(operator, url)
                self._count(len(read_checked(files, path)))
        for store in operator.stores if not operator.schema_files else ():
            directories = StoreId(operator.id, 0, store.name).directories
            path = self._checkpoint.path(STATE, *directories, "_metadata", "schema")
            # Spark writes a new one where it is missing.
            with self._noting(what):
                if self._checkpoint.files.exists(path):
                    self._read(what, path)

    def _schema_file(self, operator: StatefulOperator, url: str) -> tuple[FileSystem, str]:
        """Where a schema file is looked for."""
        checkpoint = self._checkpoint
        below = operator.below_its_schemas(url)
        if below is not None and checkpoint.files.exists(checkpoint.path(METADATA_FILE_NAME)):
            # A savepoint may be moved: what is restored from it is told where its files are.
            return checkpoint.files, checkpoint.path(STATE, str(operator.id), SCHEMAS, below)
        if checkpoint.files.scheme == "file" or split_url(url)[0] != "file":
            return open_file_system(url)
        # Spark takes a path without a scheme as one in the file system of the checkpoint.
        bucket = checkpoint.root.removesuffix(path_in_its_file_system(checkpoint.url))
        return checkpoint.files, bucket + url

    def _check_partitions(self, operator: StatefulOperator) -> None:
        """Compare what the commit log names with what the operator has."""
        ids = self._checkpoint.commit(self._batch).state_ids
        if ids is None:
            return
        named = len(ids.get(operator.id, ()))
        if named != operator.partitions and not (named == 1 and operator.may_be_single):
            raise CorruptCheckpointError(
                f"the commit log of {self._checkpoint.url} names the state of {named} partitions of operator {operator.id} "
                f"({operator.name}) for batch {self._batch}, and the operator has {operator.partitions}. Copy the right "
                "files back from a backup, or go on from an earlier batch."
            )

    def _check_store(self, version: StoreVersion) -> None:
        with self._noting(str(version.store)):
            versions = self._checkpoint.open(version.store)
            where = versions.where(version.name)
            metadata = versions.metadata(version.name, version.attempt)
            self._count(versions.files.size(versions.metadata_path(version.name)))
            for entry in metadata.handle:
                try:
                    self._verifier.read_stream(entry.state, where)
                except FileNotFoundError as error:
                    raise CheckpointNotFoundError(
                        f"{where} needs the state stream {entry.state.stream_state_handle_id}, which is missing. Copy it "
                        "back from a backup, or go on from an earlier batch."
                    ) from error
                self._count(entry.state.state_size)
            with self._lock:
                self._stores += 1

    def _check_operator_state(self) -> None:
        directory = self._checkpoint.path(OPERATOR_STATE_DIR)
        sizes: dict[str, dict[str, int]] = {}
        with self._noting("the operator state"):
            for status in self._list(directory):
                name, _, below = status.path[len(directory) + 1 :].partition("/")
                sizes.setdefault(name, {})[below] = status.size
        for name in sorted(sizes):
            with self._noting(f"the operator state {name!r}"):
                state = QueryOperatorState(self._checkpoint.url, name)
                batches = [number for number in state.batches() if number <= self._batch]
                if batches:
                    state.read(batches[-1])
                    start = f"chk-{batches[-1]}_"
                    self._count(*(size for below, size in sizes[name].items() if below.startswith(start)))

    def _spark_file(self, what: str, *names: str) -> bytes | None:
        return self._read(what, self._checkpoint.path(*names))

    def _read(self, what: str, path: str) -> bytes | None:
        data = None
        with self._noting(what):
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
    def _noting(self, what: str) -> Iterator[None]:
        """Note what goes wrong within, and go on."""
        try:
            yield
        except ForeignCheckpointError:
            raise
        except (StateStoreError, OSError, KeyError, IndexError, TypeError, ValueError) as error:
            # The last four: what Spark wrote says something else than what there is.
            problem = Problem.of(what, error)
            with self._lock:
                if problem not in self._problems:
                    self._problems.append(problem)
