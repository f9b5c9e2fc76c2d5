"""A query's checkpoint for tests, written without Spark as Spark and the shim write it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spark_statestore.options import StorageOptions
from spark_statestore.query import CommitEntry, OffsetEntry, QueryCheckpoint
from spark_statestore.query.logs import SHUFFLE_PARTITIONS
from spark_statestore.query.store_snapshot import read_store
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.incremental_handle import IncrementalStateHandle
from spark_statestore.store.cleanup import discard_versions
from spark_statestore.store.commit import Committed, begin_checkpoint
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import ColumnFamily, StoreId
from spark_statestore.testing.stores import attempt_id, message

QUERY_ID = "f013e4c2-9d1b-4c1e-8a52-6f6f6a3d2c11"
LARGE = bytes(700)
"""A value that does not stay inside of metadata."""

SCHEMA = '{"type":"struct","fields":[{"name":"k","type":"long","nullable":true,"metadata":{}}]}'

# An aggregation with two partitions, and one that has two stores in its only one.
OPERATORS = {0: ("stateStoreSave", 2, ("default",)), 1: ("symmetricHashJoin", 1, ("left", "right"))}
Operators = Mapping[int, tuple[str, int, tuple[str, ...]]]


def stores_of(operators: Operators) -> list[StoreId]:
    """The stores of operators, each of a name, partitions and names of stores."""
    return [
        StoreId(number, partition, name)
        for number, (_, partitions, names) in operators.items()
        for partition in range(partitions)
        for name in names
    ]


STORES = stores_of(OPERATORS)

Rows = Mapping[bytes, bytes]
Content = dict[StoreId, dict[bytes, bytes]]


# Longs by their partition of two, of Spark's hash.
_LONGS = ((2, 4, 5, 8, 12), (0, 1, 3, 6, 7))


def row_key(store: StoreId, key: bytes) -> bytes:
    """A key by its first letter, as a row of `SCHEMA` that Spark's shuffle sends to the store's partition."""
    return struct.pack("<qq", 0, _LONGS[store.partition][b"abcfl".index(key[:1])])


@dataclass
class Instance:
    """A store as one executor has it open: what it wrote or loaded last."""

    store: StoreDirectory
    name: CheckpointName | None = None
    attempt_id: str | None = None
    handle: IncrementalStateHandle | None = None


@dataclass
class WrittenQuery:
    """A query whose batches are written by hand, with ids in Spark's checkpoint format v2.

    Spark's logs keep `retained_batches` before the newest one. `key` returns what a key is in a store; where
    keys are read they must be rows of `key_schema`.
    """

    url: str
    with_ids: bool = False
    checkpoints_dir: str | None = None
    retained_batches: int = 100
    options: StorageOptions = field(
        default_factory=lambda: StorageOptions(file_state_threshold=512, compression=None)
    )
    operators: Operators = field(default_factory=lambda: OPERATORS)
    key: Callable[[StoreId, bytes], bytes] = lambda store, key: key
    key_schema: str = SCHEMA
    value_schema: str = SCHEMA

    def __post_init__(self) -> None:
        self.stores = stores_of(self.operators)
        # What they have after the newest batch.
        self.rows: Content = {store: {} for store in self.stores}
        self.batch = -1
        fsync = self.options.fsync
        self.checkpoint = QueryCheckpoint(self.url, checkpoints_dir=self.checkpoints_dir, fsync=fsync)
        self.write("metadata", json.dumps({"id": QUERY_ID}).encode())
        for number, (name, partitions, stores) in self.operators.items():
            described = [
                {"storeName": store, "numColsPrefixKey": 0, "numPartitions": partitions} for store in stores
            ]
            node = {"operatorInfo": {"operatorId": number, "operatorName": name}, "stateStoreInfo": described}
            self.write(f"state/{number}/_metadata/metadata", f"v1\n{json.dumps(node)}".encode())
        self.instances = {store: self.open(store) for store in self.stores}

    def write(self, path: str, data: bytes) -> None:
        """Write one of Spark's own files."""
        whole = self.checkpoint.path(path)
        self.checkpoint.files.make_directory(whole.rpartition("/")[0])
        self.checkpoint.files.replace(whole, data)

    def open(self, store: StoreId) -> Instance:
        """Open a store anew."""
        directory = self.checkpoint.open(store).url
        return Instance(StoreDirectory(store, directory, self.options))

    def begin(self, *changed: StoreId, put: Rows | None = None, whole: bool = False) -> dict[StoreId, str]:
        """Run the next batch up to the entry in the commit log; returns the attempts.

        It puts rows, by default one with its number, in the stores that it changes, by default all; or it
        writes whole snapshots.
        """
        number = self.batch + 1
        put = {b"batch": b"%d" % number} if put is None else put
        conf = {SHUFFLE_PARTITIONS: "2"}
        offsets = OffsetEntry(
            "v1", {"batchWatermarkMs": number, "conf": conf}, (json.dumps({"logOffset": number}),)
        )
        input_file = {"path": f"file:///in/{number}", "timestamp": number, "batchId": number}
        self.write(f"sources/0/{number}", f"v1\n{json.dumps(input_file)}".encode())
        self.write(f"offsets/{number}", offsets.encode())
        return {
            store: self.commit_store(store, put if not changed or store in changed else {}, whole=whole)
            for store in self.stores
        }

    def commit_store(
        self, store: StoreId, put: Rows, *, instance: Instance | None = None, whole: bool = False
    ) -> str:
        """Commit a store's version of the batch that was begun; returns the attempt."""
        instance = instance or self.instances[store]
        by = attempt_id()
        version = self.batch + 2
        put = {self.key(store, key): value for key, value in put.items()}
        rows = {**self.rows[store], **put}
        pending = begin_checkpoint(
            instance.store,
            CheckpointName(version, by if self.with_ids else None),
            by,
            (ColumnFamily("default", len(rows), self.key_schema, self.value_schema, "hash", 0),),
        )
        whole = whole or instance.handle is None
        if rows_to_write := rows if whole else put:
            pending.write(0, message(rows_to_write))
        parent = None if whole else instance.handle
        committed: Committed = pending.publish(parent, instance.attempt_id, None)
        instance.name = CheckpointName(version, by if self.with_ids else None)
        instance.attempt_id, instance.handle = by, committed.handle
        return by

    def log_commit(
        self, attempts: Mapping[StoreId, str], put: Rows, changed: tuple[StoreId, ...] = ()
    ) -> None:
        """Enter the batch that was begun into the commit log, and purge what is old."""
        self.batch += 1
        for store in self.stores:
            if not changed or store in changed:
                self.rows[store] = {**self.rows[store], **{self.key(store, k): v for k, v in put.items()}}
        entry = CommitEntry("v1", {"nextBatchWatermarkMs": 0})
        if self.with_ids:
            ids = {
                number: [
                    [attempts[StoreId(number, partition, name)] for name in names]
                    for partition in range(partitions)
                ]
                for number, (_, partitions, names) in self.operators.items()
            }
            entry = CommitEntry("v2", entry.metadata).with_state_ids(ids)
        self.write(f"commits/{self.batch}", entry.encode())
        for log in ("commits", "offsets"):
            for status in list(self.checkpoint.files.list_files(self.checkpoint.path(log))):
                name = status.path.rpartition("/")[2]
                if name.isdigit() and int(name) < self.batch - self.retained_batches:
                    self.checkpoint.files.delete(status.path)

    def run(self, *changed: StoreId, put: Rows | None = None, whole: bool = False) -> int:
        """Run a batch; returns its number."""
        put = {b"batch": b"%d" % (self.batch + 1)} if put is None else put
        self.log_commit(self.begin(*changed, put=put, whole=whole), put, changed)
        return self.batch

    def set_back(self, batch: int) -> None:
        """Continue after an earlier batch, whose rows are read from the checkpoint."""
        self.batch, self.rows = batch, content(self.checkpoint, batch)
        self.restart()

    def restart(self) -> None:
        """Open all stores anew, as the newest batch that is done left them."""
        self.instances = {store: self.open(store) for store in self.stores}
        if self.batch < 0:
            return
        for version in self.checkpoint.stores(self.batch):
            instance = self.instances[version.store]
            metadata = instance.store.load(version.name)
            instance.name, instance.attempt_id, instance.handle = (
                version.name,
                metadata.attempt_id,
                metadata.handle,
            )

    def clean_up(self, keep: int, *stores: StoreId) -> int:
        """Let stores discard all but `keep` versions before the newest committed one."""
        removed = 0
        for store in stores or self.stores:
            instance = self.instances[store]
            if instance.name is not None and instance.attempt_id is not None:
                retain_from = instance.name.version - keep
                removed += discard_versions(
                    instance.store, instance.name, instance.attempt_id, retain_from, 0
                )
        return removed


def content(checkpoint: QueryCheckpoint, batch: int | None = None) -> Content:
    """Return the rows of all stores of a checkpoint."""
    rows_by_store: Content = {}
    for version in checkpoint.stores(batch):
        tables = [table for _, table in read_store(checkpoint, version).rows()]
        rows_by_store[version.store] = {
            row["key"]: row["value"] for table in tables for row in table.to_pylist()
        }
    return rows_by_store


def united(rows_by_store: Content) -> dict[bytes, bytes]:
    """Return the rows of all stores together."""
    return {key: value for rows in rows_by_store.values() for key, value in rows.items()}


def query_after(url: str, batches: int, with_ids: bool = False) -> WrittenQuery:
    """A query that has run some batches."""
    query = WrittenQuery(url, with_ids)
    for _ in range(batches):
        query.run()
    return query


SMALL = {0: ("dedupe", 2, ("default",))}
# For what is tried at every call to storage.
SINGLE = {0: ("dedupe", 1, ("default",))}


def grown(
    url: str, with_ids: bool = False, checkpoints_dir: str | None = None, operators: Operators = OPERATORS
) -> WrittenQuery:
    """A query with some batches, whose state is in files and inline in metadata."""
    query = WrittenQuery(url, with_ids, checkpoints_dir, operators=operators)
    query.run(put={b"large": LARGE})
    query.run()
    query.run(STORES[0])
    return query


def go_on(query: WrittenQuery, batches: int = 3) -> None:
    """Run batches until cleanups have discarded all earlier versions."""
    for _ in range(batches):
        query.run(whole=True)
        query.clean_up(1)
