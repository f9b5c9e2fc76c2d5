"""Copy of one batch of a query as a checkpoint location of its own."""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from spark_statestore.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    IllegalStateError,
    restore_from_backup,
)
from spark_statestore.files import join, parent_of
from spark_statestore.files.failures import failing_to
from spark_statestore.operator_state.query_operator_state import OPERATOR_STATE_DIR
from spark_statestore.query import sources
from spark_statestore.query.layout import (
    entry_before,
    newest_operator_state,
    operator_states,
    path_in_its_file_system,
)
from spark_statestore.query.logs import SHUFFLE_PARTITIONS, CommitEntry, OffsetEntry
from spark_statestore.query.operators import SCHEMAS, StatefulOperator
from spark_statestore.query.parallel import Progress, parallel_iter
from spark_statestore.query.query_checkpoint import (
    COMMITS,
    METADATA,
    OFFSETS,
    SOURCES,
    STATE,
    QueryCheckpoint,
)
from spark_statestore.query.store_snapshot import StoreSnapshot, read_store, write_store
from spark_statestore.rescaling import rescaled, rescaled_count, write_rescaled
from spark_statestore.storage import (
    METADATA_FILE_NAME,
    CheckpointName,
    CheckpointStorageLocationReference,
    decode_path_from_reference,
)
from spark_statestore.storage.merged_lookup import MERGED_DIRECTORY
from spark_statestore.store.metadata import StoreId

DIRECTORIES: Final = (COMMITS, OFFSETS, SOURCES, OPERATOR_STATE_DIR, STATE)
"""Directories beside the file ``metadata``."""

EditOfLogs = Callable[[OffsetEntry, CommitEntry], tuple[OffsetEntry, CommitEntry]]


def unchanged(offsets: OffsetEntry, commit: CommitEntry) -> tuple[OffsetEntry, CommitEntry]:
    """Return the entries of a batch as they are."""
    return offsets, commit


# Reads of a source's log, which the query may compact and purge during the read.
_ATTEMPTS: Final = 3


class CheckpointCopy:
    """A copy of one batch of a query, from which the query resumes after it.

    It is made in steps: `write`, `write_logs`, and `publish`, which writes the file ``metadata``. Without
    that, neither Spark nor this package accepts the location as a checkpoint. A failed copy is not removed.

    Parameters
    ----------
    location
        Reference to an empty location, which the caller has reserved or is alone to know.
    entry
        The batch's entry of the commit log by which the caller has read the state; of `state_of` if given.
    partitions
        Number of state partitions, by default unchanged.
    checkpoints_dir
        The option ``checkpointsDir`` of the query in the copy.
    conf
        Settings in the offset log that the copy has with other values.
    with_ids
        Write checkpoint format v2, whatever the source has.
    change
        Returns the content that the copy of a store has; not for a copy with other partitions.
    edit
        Returns the entries of the batch that the copy has in Spark's logs.
    source_logs
        Files that the copy has for a source instead, by its name and theirs.
    has_operator_state
        Copy the operator state of the query's own functions, too.
    state_of
        A checkpoint and a batch whose operators and stores the copy has instead, with the settings of that
        batch; all else is the source's. Not for a copy with other partitions.
    memory
        Limit of the bytes of rows held for each store, see `read_store`; not for a copy with other
        partitions.
    progress
        Called with the number of stores that are copied and their total.
    """

    def __init__(
        self,
        source: QueryCheckpoint,
        batch: int,
        location: CheckpointStorageLocationReference,
        *,
        query_id: str,
        entry: CommitEntry | None = None,
        partitions: int | None = None,
        checkpoints_dir: str | None = None,
        fsync: bool = False,
        conf: Mapping[str, str] | None = None,
        with_ids: bool = False,
        change: Callable[[StoreSnapshot], StoreSnapshot] = lambda content: content,
        edit: EditOfLogs = unchanged,
        source_logs: Mapping[str, Mapping[str, bytes]] | None = None,
        has_operator_state: bool = True,
        state_of: tuple[QueryCheckpoint, int] | None = None,
        memory: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._source = source
        self._stateful, self._state_batch = (source, batch) if state_of is None else state_of
        self._change = change
        self._edit = edit
        self._source_logs = source_logs or {}
        self._has_operator_state = has_operator_state
        self._memory = memory
        self._with_ids = with_ids
        self._batch = source.require_batch(batch)
        self._commit = self._stateful.commit(self._state_batch)
        self._entry = entry or self._commit
        self._offsets = source.offsets(batch)
        self._state_offsets = self._offsets if state_of is None else state_of[0].offsets(state_of[1])
        self._ids = self._commit.state_ids or {}
        self._before = entry_before(source, batch) if batch > 0 else None
        self._query_id = query_id
        self._partitions = None if partitions == self._offsets.shuffle_partitions else partitions
        self._elsewhere = checkpoints_dir is not None
        target = decode_path_from_reference(location)
        state_url = join(checkpoints_dir, query_id.replace("-", "")) if checkpoints_dir else None
        self._target = QueryCheckpoint(target, state_url=state_url, fsync=fsync)
        self._partitions_written: dict[int, int] = {}
        self._conf = dict(conf or {})
        if self._partitions:
            self._conf[SHUFFLE_PARTITIONS] = str(self._partitions)
        self._state_path = join(path_in_its_file_system(target), STATE)
        self._progress: Progress = progress or (lambda completed, total: None)

    def write(self, *, state: bool = True, commit: CommitEntry | None = None) -> None:
        """Write all files but `write_logs`'s and `publish`'s.

        Without `state`, the stores are left out: they stay in the source, or were written before with the
        checkpoint ids of `commit`, the entry of the copy's commit log.

        Raises
        ------
        IllegalStateError
            If the query is rescaled or written in place, so that entries and stores may not fit together.
        """
        commit = commit or self._commit
        operators = list(self._stateful.operator_files(self._state_batch))
        self._require_unchanged()
        if state:
            writes = self._writes_in_place()
            count_store = self._counted(sum(self._store_count(stateful) for _, stateful in operators))
            ids = {stateful.id: self._write_stores(stateful, count_store) for _, stateful in operators}
            if later := sorted(self._writes_in_place() - writes):
                raise self._changed_meanwhile(f"{STATE}/{MERGED_DIRECTORY}/{later[0]}")
            self._require_unchanged()
            if self._with_ids or commit.state_ids is not None:
                commit = commit.with_state_ids(ids)
        self._commit = commit
        for path, operator in operators:
            self._write_operator(path, operator)
        for name, offset in self._source.source_offsets(self._offsets).items():
            self._write_source(name, offset)
        if self._has_operator_state:
            self._write_operator_state()

    def write_logs(self) -> None:
        """Write the entries of Spark's logs, after `write`."""
        offsets, commit = self._edit(self._changed(self._offsets), self._commit)
        if self._before is not None:
            before = self._changed(self._before)
            if offsets.sources != self._offsets.sources:
                # At a start Spark asks some sources for what is between the two entries.
                before = replace(before, sources=offsets.sources)
            self._put(before.encode(), OFFSETS, str(self._batch - 1))
        self._put(offsets.encode(), OFFSETS, str(self._batch))
        self._put(commit.encode(), COMMITS, str(self._batch))

    def publish(self, *, reserved: bool = False) -> None:
        """Write the file without which the location is no checkpoint, last of all.

        The file of a reserved location is replaced.
        """
        data = json.dumps({"id": self._query_id}, separators=(",", ":")).encode()
        if not reserved:
            self._put(data, METADATA)
            return
        path = self._target.path(METADATA)
        with failing_to("write", self._target.files, path):
            self._target.files.replace(path, data)

    @property
    def state_ids(self) -> Mapping[int, Sequence[Sequence[str]]] | None:
        """Checkpoint ids of the stores after `write`; None in checkpoint format v1."""
        return self._commit.state_ids

    @property
    def shuffle_partitions(self) -> int | None:
        """Number of shuffle partitions in the source's log."""
        return self._offsets.shuffle_partitions

    @property
    def partitions_written(self) -> Mapping[int, int]:
        """Number of partitions of each operator whose stores `write` has copied."""
        return self._partitions_written

    def _require_unchanged(self) -> None:
        """Raise if the entries are not as they were, so that what was read since may be of others."""
        # A query that runs may have purged them, but does not change them.
        with contextlib.suppress(CheckpointNotFoundError):
            # Raises if they are being changed.
            self._stateful.require_batch(self._state_batch)
            present = (self._stateful.commit(self._state_batch), self._stateful.offsets(self._state_batch))
            if present != (self._entry, self._state_offsets):
                raise self._changed_meanwhile(f"{COMMITS}/{self._state_batch}")

    def _changed_meanwhile(self, name: str) -> IllegalStateError:
        return IllegalStateError(
            f"{name} of {self._stateful.url} has changed during the copy, which would have the state of "
            "before and after: another process rescales the query in place, or writes its state. Let it end, "
            "then try again; no copy was made."
        )

    def _writes_in_place(self) -> frozenset[str]:
        """Return the merged files by which writes in place have changed the batch, without ids."""
        if self._ids:
            return frozenset()
        with failing_to("list", *self._stateful.open_state()):
            names = self._stateful.merged_files().names_of(self._state_batch + 1)
        return frozenset(str(name) for name in names if name.write)

    def _changed(self, entry: OffsetEntry) -> OffsetEntry:
        for name, value in self._conf.items():
            entry = entry.with_conf(name, value)
        return entry

    def _counted(self, total: int) -> Callable[[], None]:
        """Return a function to call after each store that is copied."""
        counter = itertools.count(1)
        self._progress(0, total)
        return lambda: self._progress(next(counter), total)

    def _store_count(self, operator: StatefulOperator) -> int:
        if self._partitions is None:
            return len(self._stateful.stores(self._state_batch, operator.id))
        return rescaled_count(self._source, self._batch, operator, self._partitions)

    def _write_stores(self, operator: StatefulOperator, count_one: Callable[[], None]) -> list[list[str]]:
        """Write the stores of an operator, and return their attempts by partition and store."""
        has_ids = self._with_ids or operator.id in self._ids

        def write(content: StoreSnapshot) -> tuple[StoreId, str]:
            attempt_id = secrets.token_hex(8)
            name = CheckpointName(self._batch + 1, attempt_id if has_ids else None)
            write_store(self._target.open(content.store), name, attempt_id, content)
            return content.store, attempt_id

        attempts: dict[StoreId, str] = {}
        storages = (self._source.files, self._target.files)
        if self._partitions is not None:
            spread = rescaled(self._source, self._batch, operator, self._partitions)
            for store, attempt_id in write_rescaled(write, spread, *storages):
                attempts[store] = attempt_id
                count_one()
        else:
            versions = self._stateful.stores(self._state_batch, operator.id)
            named = {name for stores in self._ids.get(operator.id, [[None]]) for name in stores}
            if not named.issuperset(version.name.id for version in versions):
                raise self._changed_meanwhile(f"{COMMITS}/{self._state_batch}")
            for store, attempt_id in parallel_iter(
                lambda version: write(self._change(read_store(self._stateful, version, self._memory))),
                versions,
                *storages,
            ):
                attempts[store] = attempt_id
                count_one()
        moved = self._moved(operator)
        # An operator without grouping columns has one partition, regardless of Spark's metadata.
        count = 1 + max(store.partition for store in attempts)
        self._partitions_written[operator.id] = count
        stores_by_partition = [
            [StoreId(moved.id, partition, store.name) for store in moved.stores]
            for partition in range(count if moved.may_be_single and count == 1 else moved.partitions)
        ]
        if set(itertools.chain(*stores_by_partition)) != attempts.keys():
            raise IllegalStateError(
                f"operator {moved.id} ({moved.name}) has {moved.partitions} partitions of "
                f"{len(moved.stores)} stores, but {len(attempts)} stores were written. Please report this "
                "error; delete the new checkpoint, which is unusable."
            )
        return [[attempts[store] for store in stores] for stores in stores_by_partition]

    def _moved(self, operator: StatefulOperator) -> StatefulOperator:
        if self._partitions is not None:
            operator = operator.with_partitions(self._partitions)
        return operator.relocated(self._state_path)

    def _write_operator(self, path: str, operator: StatefulOperator) -> None:
        for url in operator.schema_files:
            below = operator.below_its_schemas(url)
            if below is None:
                raise CorruptCheckpointError(
                    f"{self._stateful.files.url(path)} names the schema file {url}, which is not in the "
                    "operator's directory. " + restore_from_backup("the right file", otherwise=None)
                )
            self._copy(self._stateful, STATE, str(operator.id), SCHEMAS, *below.split("/"))
        for store in operator.stores:
            names = StoreId(operator.id, 0, store.name).directories
            # With version 1 of the operator metadata, schemas are beside the first partition's state.
            for name in self._stateful.files_below(STATE, *names, "_metadata"):
                self._copy(self._stateful, STATE, *names, "_metadata", *name.split("/"))
        moved = self._moved(operator)
        if self._elsewhere:
            # Spark counts partitions by these directories.
            for partition in range(self._partitions_written.get(moved.id, moved.partitions)):
                for store in moved.stores:
                    directories = StoreId(moved.id, partition, store.name).directories
                    self._make_directory(self._target.path(STATE, *directories))
        parts = path[len(self._stateful.root) + 1 :].split("/")
        if self._stateful is not self._source and parts[-1] != METADATA:
            # Version 2 has the first batch of the run, which may be later than this one.
            parts[-1] = str(self._batch)
        self._put(moved.encode(), *parts)

    def _write_source(self, name: str, offset: str) -> None:
        contents = self._source_logs.get(name)
        if contents is None:
            contents = self._copied_source(name, offset)
        for file, data in contents.items():
            self._put(data, SOURCES, name, *file.split("/"))

    def _copied_source(self, name: str, offset: str) -> dict[str, bytes]:
        with failing_to("read", self._source.files, self._source.path(SOURCES, name)):
            for attempts_left in range(_ATTEMPTS, 0, -1):
                try:
                    contents = self._source_files(name, offset)
                except FileNotFoundError:
                    # The running query has purged a compacted file.
                    if attempts_left == 1:
                        raise
                else:
                    break
        return contents

    def _source_files(self, name: str, offset: str) -> dict[str, bytes]:
        names = self._source.files_below(SOURCES, name)
        last = sources.position(offset)
        log = sources.log_files(names)
        if last is None or not sources.is_file_source(log, partial(self._read, self._source, SOURCES, name)):
            return {file: self._read(self._source, SOURCES, name, *file.split("/")) for file in names}
        where = self._source.files.url(self._source.path(SOURCES, name))
        part = sources.cut(log, last, where)
        contents = {file: self._read(self._source, SOURCES, name, file) for file in part.unchanged_files}
        if part.compact is not None:
            file, origin = part.compact
            contents[file] = sources.compacted(
                self._read(self._source, SOURCES, name, origin), last, join(where, origin)
            )
        return contents

    def _write_operator_state(self) -> None:
        for operator, names in operator_states(self._source.files_below(OPERATOR_STATE_DIR)).items():
            where = self._source.files.url(self._source.path(OPERATOR_STATE_DIR, operator))
            for chosen in newest_operator_state(names, self._batch, where):
                # The metadata last, as it was written.
                for name in sorted(names[chosen], key=lambda file: file == METADATA_FILE_NAME):
                    self._copy(self._source, OPERATOR_STATE_DIR, operator, chosen.directory, *name.split("/"))

    def _read(self, source: QueryCheckpoint, *names: str) -> bytes:
        path = source.path(*names)
        if source.files.has_link(source.root, path[len(source.root) + 1 :]):
            # Following links would leak files into the copy.
            raise CorruptCheckpointError(
                f"{source.files.url(path)} is a symbolic link, or below one. Replace the link by the "
                "file; nothing was changed."
            )
        return source.files.read(path)

    def _copy(self, source: QueryCheckpoint, *names: str) -> None:
        with failing_to("read", source.files, source.path(*names)):
            data = self._read(source, *names)
        self._put(data, *names)

    def _put(self, data: bytes, *names: str) -> None:
        path = self._target.path(*names)
        self._make_directory(parent_of(path))
        with failing_to("write", self._target.files, path):
            self._target.files.create(path, data)

    def _make_directory(self, path: str) -> None:
        with failing_to("make the directory", self._target.files, path):
            self._target.files.make_directory(path)
