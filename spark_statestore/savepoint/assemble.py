"""Writes one batch of a query as a checkpoint location of its own."""

from __future__ import annotations

import itertools
import json
import secrets
from functools import partial
from typing import Final

from spark_statestore.checkpoint.files import join, parent_of
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
)
from spark_statestore.checkpoint.query.layout import (
    entry_before,
    list_below,
    newest_operator_state,
    operator_states,
    path_in_its_file_system,
)
from spark_statestore.checkpoint.query.logs import SHUFFLE_PARTITIONS, OffsetEntry
from spark_statestore.checkpoint.query.operators import SCHEMAS, StatefulOperator
from spark_statestore.checkpoint.storage import METADATA_FILE_NAME, CheckpointName
from spark_statestore.errors import CorruptCheckpointError, IllegalStateError
from spark_statestore.savepoint.at_once import at_once
from spark_statestore.savepoint.content import StoreContent, read_store, write_store
from spark_statestore.savepoint.rescale import rescaled
from spark_statestore.state.operator.query import OPERATOR_STATE_DIR

__all__ = ["DIRECTORIES", "assemble"]

DIRECTORIES: Final = (COMMITS, OFFSETS, SOURCES, OPERATOR_STATE_DIR, STATE)
"""What is written beside the file ``metadata``."""

# A source whose log is cleaned up while it is read is read again.
_ATTEMPTS: Final = 3


def assemble(
    source: QueryCheckpoint,
    batch: int,
    target: str,
    *,
    query_id: str,
    partitions: int | None = None,
    checkpoints_dir: str | None = None,
    state: bool = True,
    fsync: bool = False,
) -> None:
    """Write what a query's next batch needs, as its newest batch found it, to an empty place.

    The file ``metadata`` is written last: before, neither Spark nor this package takes the place for a
    checkpoint. What was written is left there if that fails.

    Parameters
    ----------
    source
        The checkpoint of the query.
    batch
        The batch that was done last.
    target
        URL of the new checkpoint location. The caller sees to it that nothing is there.
    query_id
        The id that the query has there.
    partitions
        Number of state partitions, as it is by default.
    checkpoints_dir
        The option ``checkpointsDir`` that the query will have there.
    state
        Whether the stores are written. Without, the commit log names the attempts of the source.
    fsync
        Whether local files are synced.

    Raises
    ------
    CheckpointNotFoundError
        If the source does not have the batch, or not all of it any more.
    CheckpointError
        If something cannot be read or written.
    """
    _Assembly(source, batch, target, query_id, partitions, checkpoints_dir, fsync).write(state=state)


class _Assembly:
    def __init__(
        self,
        source: QueryCheckpoint,
        batch: int,
        target: str,
        query_id: str,
        partitions: int | None,
        checkpoints_dir: str | None,
        fsync: bool,
    ) -> None:
        self._source = source
        self._batch = source.require_batch(batch)
        self._commit = source.commit(batch)
        self._offsets = source.offsets(batch)
        self._query_id = query_id
        self._partitions = None if partitions == self._offsets.shuffle_partitions else partitions
        self._elsewhere = checkpoints_dir is not None
        state_url = join(checkpoints_dir, query_id.replace("-", "")) if checkpoints_dir else None
        self._target = QueryCheckpoint(target, state_url=state_url, fsync=fsync)
        self._partitions_written: dict[int, int] = {}
        self._state_path = join(path_in_its_file_system(target), STATE)

    def write(self, *, state: bool) -> None:
        commit = self._commit
        operators = list(self._source.operator_files(self._batch))
        if state:
            ids = {one.id: self._write_stores(one) for _, one in operators}
            if commit.state_ids is not None:
                commit = commit.with_state_ids(ids)
        for path, operator in operators:
            self._write_operator(path, operator)
        for name, offset in self._source.source_offsets(self._offsets).items():
            self._write_source(name, offset)
        self._write_operator_state()
        if self._batch > 0:
            before = entry_before(self._source, self._batch)
            self._put(self._rescaled(before).encode(), OFFSETS, str(self._batch - 1))
        self._put(self._rescaled(self._offsets).encode(), OFFSETS, str(self._batch))
        self._put(commit.encode(), COMMITS, str(self._batch))
        self._put(json.dumps({"id": self._query_id}, separators=(",", ":")).encode(), METADATA)

    def _rescaled(self, entry: OffsetEntry) -> OffsetEntry:
        return entry.with_conf(SHUFFLE_PARTITIONS, str(self._partitions)) if self._partitions else entry

    def _write_stores(self, operator: StatefulOperator) -> list[list[str]]:
        """Write the stores of an operator, and give the attempts by partition and store."""
        ids = self._commit.state_ids
        has_ids = ids is not None and operator.id in ids

        def write(content: StoreContent) -> tuple[StoreId, str]:
            attempt = secrets.token_hex(8)
            name = CheckpointName(self._batch + 1, attempt if has_ids else None)
            write_store(self._target.open(content.store), name, attempt, content)
            return content.store, attempt

        attempts: dict[StoreId, str] = {}
        storages = (self._source.files, self._target.files)
        if self._partitions is not None:
            spread = rescaled(self._source, self._batch, operator, self._partitions)
            # One store's partitions are spread while the ones before are written.
            for _, contents in itertools.groupby(spread, lambda content: content.store.name):
                attempts.update(at_once(write, contents, *storages))
        else:
            versions = self._source.stores(self._batch, operator.id)
            attempts.update(
                at_once(lambda version: write(read_store(self._source, version)), versions, *storages)
            )
        moved = self._moved(operator)
        # One where there is nothing to spread rows by, whatever number Spark notes.
        count = 1 + max(store.partition for store in attempts)
        self._partitions_written[operator.id] = count
        wanted = [
            [StoreId(moved.id, partition, store.name) for store in moved.stores]
            for partition in range(count if moved.may_be_single and count == 1 else moved.partitions)
        ]
        if set(itertools.chain(*wanted)) != attempts.keys():
            raise IllegalStateError(
                f"operator {moved.id} ({moved.name}) has {moved.partitions} partitions of {len(moved.stores)} stores, and "
                f"{len(attempts)} stores were written. Please report it; the new checkpoint is not usable, delete it."
            )
        return [[attempts[store] for store in stores] for stores in wanted]

    def _moved(self, operator: StatefulOperator) -> StatefulOperator:
        if self._partitions is not None:
            operator = operator.with_partitions(self._partitions)
        return operator.relocated(self._state_path)

    def _write_operator(self, path: str, operator: StatefulOperator) -> None:
        for url in operator.schema_files:
            below = operator.below_its_schemas(url)
            if below is None:
                raise CorruptCheckpointError(
                    f"{self._source.files.url(path)} names the schema file {url}, which is not in the operator's directory. "
                    "Copy the right file back from a backup; nothing was changed."
                )
            self._copy(STATE, str(operator.id), SCHEMAS, *below.split("/"))
        for store in operator.stores:
            names = StoreId(operator.id, 0, store.name).directories
            # Version 1 of the operator's file has the schemas here, beside the first partition's state.
            for name in self._list(STATE, *names, "_metadata"):
                self._copy(STATE, *names, "_metadata", *name.split("/"))
        moved = self._moved(operator)
        if self._elsewhere:
            # Spark counts partitions by these directories.
            for partition in range(self._partitions_written.get(moved.id, moved.partitions)):
                for store in moved.stores:
                    directories = StoreId(moved.id, partition, store.name).directories
                    self._make_directory(self._target.path(STATE, *directories))
        self._put(moved.encode(), *path[len(self._source.root) + 1 :].split("/"))

    def _write_source(self, name: str, offset: str) -> None:
        with failing_to("read", self._source.files, self._source.path(SOURCES, name)):
            for left in range(_ATTEMPTS, 0, -1):
                try:
                    written = self._source_files(name, offset)
                except FileNotFoundError:
                    # The query runs, and has just removed what it had compacted.
                    if left == 1:
                        raise
                else:
                    break
        for file, data in written.items():
            self._put(data, SOURCES, name, *file.split("/"))

    def _source_files(self, name: str, offset: str) -> dict[str, bytes]:
        names = self._list(SOURCES, name)
        last = sources.position(offset)
        log = sources.log_files(names)
        if last is None or not sources.is_file_source(log, partial(self._read, SOURCES, name)):
            return {file: self._read(SOURCES, name, *file.split("/")) for file in names}
        where = self._source.files.url(self._source.path(SOURCES, name))
        part = sources.cut(log, last, where)
        written = {file: self._read(SOURCES, name, file) for file in part.kept}
        if part.compact is not None:
            file, origin = part.compact
            written[file] = sources.compacted(self._read(SOURCES, name, origin), last, join(where, origin))
        return written

    def _write_operator_state(self) -> None:
        for operator, names in operator_states(self._list(OPERATOR_STATE_DIR)).items():
            where = self._source.files.url(self._source.path(OPERATOR_STATE_DIR, operator))
            chosen = newest_operator_state(names, self._batch, where)
            if chosen is None:
                continue
            # The metadata last, as it was written.
            for name in sorted(names[chosen], key=lambda file: file == METADATA_FILE_NAME):
                self._copy(OPERATOR_STATE_DIR, operator, chosen.directory, *name.split("/"))

    def _list(self, *names: str) -> list[str]:
        """What is below a directory of the source, by path from there, without Hadoop's own files."""
        return list_below(self._source.files, self._source.path(*names))

    def _read(self, *names: str) -> bytes:
        path = self._source.path(*names)
        if self._source.files.has_link(self._source.root, path[len(self._source.root) + 1 :]):
            # A copy of what it leads to would be for all to read who can read the checkpoint.
            raise CorruptCheckpointError(
                f"{self._source.files.url(path)} is a link, or lies behind one. Put the file itself there; nothing was "
                "changed."
            )
        return self._source.files.read(path)

    def _copy(self, *names: str) -> None:
        with failing_to("read", self._source.files, self._source.path(*names)):
            data = self._read(*names)
        self._put(data, *names)

    def _put(self, data: bytes, *names: str) -> None:
        path = self._target.path(*names)
        self._make_directory(parent_of(path))
        with failing_to("write", self._target.files, path):
            self._target.files.create(path, data)

    def _make_directory(self, path: str) -> None:
        with failing_to("make the directory", self._target.files, path):
            self._target.files.make_directory(path)
