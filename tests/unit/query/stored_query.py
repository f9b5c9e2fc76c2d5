"""A word count's checkpoint location, written without Spark as Spark and its executors write it."""

from __future__ import annotations

import copy
import json
import struct
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_statestore.files import FileSystem
from spark_statestore.rescaling.murmur3 import hash_columns, partitions_of
from spark_statestore.rows.types import parse_schema
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.incremental_handle import IncrementalStateHandle
from spark_statestore.storage.merged_files import MergedFiles
from spark_statestore.store.commit import Committed, begin_checkpoint, begin_snapshot
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import ColumnFamily, StoreId
from tests.unit.rows.encoder import encode_row
from tests.unit.store.stores import SMALL_FILES, attempt_id, message


def schema(**columns: Any) -> str:
    """A schema as Spark's JSON."""
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


WORDS = schema(word="string")
COUNTS = schema(count="long")

Counts = Mapping[str, int]


@cache
def partition_of(word: str, partitions: int) -> int:
    """Return the partition to which Spark assigns a word."""
    types = parse_schema(WORDS).children
    return int(partitions_of(hash_columns([pa.array([word])], types, 1), partitions)[0])


@dataclass(frozen=True)
class Attempt:
    """One commit of a store's version."""

    id: str
    committed: Committed


class StoredQuery:
    """A query with one operator, whose words are spread over its partitions as Spark does.

    With `merges`, all versions but the first are in merged files, unless each task commits its own
    (`commits_by_task`).
    """

    def __init__(
        self, directory: Path, checkpoint_format: int = 2, partitions: int = 2, *, merges: bool = False
    ) -> None:
        self.directory = directory
        self.merges = merges
        self.commits_by_task = False
        self.merged: dict[str, MergedFiles] = {}
        self.format = checkpoint_format
        self.partitions = partitions
        self.stores = [self.open(partition) for partition in range(partitions)]
        self.states: list[dict[str, int]] = []
        """State after each batch."""
        self.counted: list[list[Attempt]] = []
        """The attempts of each batch that count, by partition."""
        self.put("metadata", json.dumps({"id": str(uuid.uuid4())}))
        operator = {
            "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
            "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": partitions}],
        }
        self.put("state/0/_metadata/metadata", f"v1\n{json.dumps(operator)}")

    @property
    def url(self) -> str:
        """Its checkpoint location."""
        return str(self.directory)

    def open(self, partition: int) -> StoreDirectory:
        """An instance of a partition's store."""
        url = f"{self.directory}/state/0/{partition}"
        return StoreDirectory(
            StoreId(0, partition),
            url,
            SMALL_FILES,
            commits=f"{self.directory}/commits" if self.merges else None,
            merged_of=self.merged_of if self.merges else None,
        )

    def restart(self, batches: int) -> StoredQuery:
        """Another run of the query, after so many batches."""
        new_run = copy.copy(self)
        new_run.merged = {}
        new_run.stores = [new_run.open(partition) for partition in range(self.partitions)]
        new_run.states, new_run.counted = self.states[:batches], self.counted[:batches]
        return new_run

    def merged_of(self, files: FileSystem, state_directory: str) -> MergedFiles:
        """The merged files that the stores share."""
        return self.merged.setdefault(state_directory, MergedFiles(files, state_directory))

    def put(self, name: str, text: str) -> None:
        """A file of Spark's, with Hadoop's checksums beside it."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = text.encode()
        path.write_bytes(data)
        sums = [
            struct.pack(">I", zlib.crc32(data[start : start + 512])) for start in range(0, len(data), 512)
        ]
        path.with_name(f".{path.name}.crc").write_bytes(b"crc\0\0\0\2\0" + b"".join(sums))

    def run(self, bases: Mapping[int, IncrementalStateHandle] | None = None, /, **counts: int) -> int:
        """Run a batch that sets counts of words and takes up snapshots by partition; return its number."""
        self.begin()
        attempts = [
            self.commit(partition, counts, (bases or {}).get(partition))
            for partition in range(self.partitions)
        ]
        return self.finish(attempts, counts)

    def begin(self) -> None:
        """Write the source log and offsets of the next batch."""
        batch = len(self.states)
        input_file = {"path": f"file:///input/{batch}", "timestamp": batch, "batchId": batch}
        self.put(f"sources/0/{batch}", f"v1\n{json.dumps(input_file)}")
        metadata = {
            "batchWatermarkMs": 0,
            "batchTimestampMs": 1_700_000_000_000 + batch,
            "conf": {"spark.sql.shuffle.partitions": str(self.partitions)},
        }
        self.put(f"offsets/{batch}", f"v1\n{json.dumps(metadata)}\n{json.dumps({'logOffset': batch})}")

    def commit(
        self,
        partition: int,
        counts: Counts,
        base: IncrementalStateHandle | None = None,
        *,
        hand_over: bool = False,
    ) -> Attempt:
        """An attempt at the next version of a partition's store, which is published or handed over."""
        by = attempt_id()
        name = CheckpointName(len(self.states) + 1, by if self.format == 2 else None)
        before = self.counted[-1][partition] if self.counted else None
        own = self.partition_rows(partition, counts)
        rows = len(self.partition_rows(partition, self.state() | dict(counts)))
        column_families = (ColumnFamily("default", rows, WORDS, COUNTS, "hash", 0),)
        merge = self.merges and not self.commits_by_task and before is not None
        pending = begin_checkpoint(
            self.stores[partition], name, by, column_families, merge=merge, hand_over=hand_over
        )
        if own:
            pending.write(0, message(own))
        checkpoint = pending.publish(before and before.committed.handle, before and before.id, base)
        return Attempt(by, checkpoint)

    def snapshot(self, partition: int) -> IncrementalStateHandle:
        """A full snapshot of a partition's newest version, for a later commit."""
        pending = begin_snapshot(
            self.stores[partition], len(self.states), (ColumnFamily("default", 0, WORDS, COUNTS, "hash", 0),)
        )
        pending.write(0, message(self.partition_rows(partition, self.state())))
        return pending.finish()

    def finish(self, attempts: list[Attempt], counts: Counts) -> int:
        """Publish what is merged, and write the batch's entry in the commit log."""
        if self.merges:
            self.stores[0].publish_merged([])
        metadata: dict[str, Any] = {"nextBatchWatermarkMs": 0}
        if self.format == 2:
            metadata["stateUniqueIds"] = {"0": [[attempt.id] for attempt in attempts]}
        batch = len(self.states)
        self.put(f"commits/{batch}", f"v{self.format}\n{json.dumps(metadata)}")
        self.states.append(self.state() | dict(counts))
        self.counted.append(attempts)
        return batch

    def forget(self, before: int) -> None:
        """Remove log entries of old batches, as Spark does."""
        for log in ("offsets", "commits"):
            for path in (self.directory / log).iterdir():
                if int(path.name.strip(".").removesuffix(".crc")) < before:
                    path.unlink()

    def state(self) -> dict[str, int]:
        """Return the state after the newest batch."""
        return self.states[-1] if self.states else {}

    def partition_rows(self, partition: int, counts: Counts) -> dict[bytes, bytes]:
        """The rows that a partition has of some words."""
        return {
            encode_row(["string"], [word]): encode_row(["long"], [count])
            for word, count in counts.items()
            if partition_of(word, self.partitions) == partition
        }

    def files(self) -> dict[str, bytes]:
        """All files but Hadoop's checksums, by path."""
        return {
            str(path.relative_to(self.directory)): path.read_bytes()
            for path in sorted(self.directory.rglob("*"))
            if path.is_file() and not path.name.endswith(".crc")
        }
