"""Write a sample of the storage formats: ``python -m tests.unit.store.write_format_sample <new directory>``.

The sample of a format version stays in the repository as the release wrote it, and later releases must read
it.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from dataclasses import asdict, astuple, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_statestore.files import LocalFileSystem, MemoryFileSystem
from spark_statestore.formats.change_batches import pack, read_change_batch
from spark_statestore.operator_state import (
    BytesSerializer,
    DefaultOperatorStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
)
from spark_statestore.operator_state.metadata import OperatorsMetadata, OperatorState, encode_operators
from spark_statestore.operator_state.snapshot_strategy import CheckpointOptions
from spark_statestore.options import StorageOptions
from spark_statestore.query.savepoint import KINDS, Savepoint, encode_savepoint
from spark_statestore.storage import (
    METADATA_FILE_NAME,
    CheckpointName,
    FsCheckpointStorage,
    FsCheckpointStorageLocation,
)
from spark_statestore.storage.handle_codec import HandleContext
from spark_statestore.storage.incremental_handle import IncrementalStateHandle
from spark_statestore.storage.operator_handles import (
    Mode,
    OperatorStreamStateHandle,
    StateMetaInfo,
)
from spark_statestore.storage.stream_handles import StateObject, StreamStateHandle
from spark_statestore.storage.streams import CheckpointedStateScope
from spark_statestore.store.commit import PendingSnapshot, begin_checkpoint, begin_snapshot
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import ColumnFamily, StoreId
from tests.unit.store.stores import message

Content = dict[str, dict[bytes, bytes]]

FAMILIES = ("default", "timers", "$times", "list")

KEY_SCHEMA = '{"type":"struct","fields":[{"name":"k","type":"long","nullable":true,"metadata":{}}]}'
VALUE_SCHEMA = '{"type":"struct","fields":[{"name":"v","type":"string","nullable":true,"metadata":{}}]}'


class Sample:
    """One store that is written version by version, and the rows of each version."""

    def __init__(self, directory: Path, partition: int, options: StorageOptions, *, with_ids: bool) -> None:
        path = directory / "0" / str(partition)
        self._store = StoreDirectory(StoreId(0, partition), str(path), options, MemoryFileSystem())
        self._with_ids = with_ids
        self._attempts = 0
        self._written_by: list[tuple[IncrementalStateHandle, str]] = []
        self.versions: dict[str, Content] = {}

    def write(self, pending: PendingSnapshot, put: Content, removed: list[bytes]) -> None:
        for number, state in enumerate(FAMILIES):
            gone = removed if state == "default" else []
            # Each value of several letters goes as two, the first one put and the rest appended.
            rest = {k: v[1:] for k, v in put.get(state, {}).items() if state == "list" and len(v) > 1}
            whole = {k: v[:1] if k in rest else v for k, v in put.get(state, {}).items()}
            if whole or gone:
                batch = read_change_batch(message(whole, gone, rest), full=True)
                pending.write(number, pack(batch).serialize())

    def column_families(self, version: int, rows: Content) -> tuple[ColumnFamily, ...]:
        described = {name: (name, len(rows[name]), KEY_SCHEMA, VALUE_SCHEMA) for name in FAMILIES}
        values = sum(1 + (len(value) > 1) for value in rows["list"].values())
        # Version 8 has another state of that name, created anew.
        created_at_version = 8 if version >= 8 else 1
        return (
            ColumnFamily(*described["default"], "hash", 0),
            ColumnFamily(*described["timers"], "prefix", 1),
            ColumnFamily(*described["$times"], "range", 0, (0,), None, True),
            ColumnFamily(*described["list"], "timestampPostfix", 0, (), values, False, created_at_version),
        )

    def commit(
        self,
        version: int,
        rows: Content,
        put: Content,
        removed: list[bytes] | None = None,
        parent: IncrementalStateHandle | None = None,
        base: IncrementalStateHandle | None = None,
    ) -> IncrementalStateHandle:
        """Commit what makes `rows` of the parent's rows."""
        self._attempts += 1
        attempt_id = f"{self._attempts:016x}"
        name = CheckpointName(version, attempt_id if self._with_ids else None)
        pending = begin_checkpoint(self._store, name, attempt_id, self.column_families(version, rows))
        self.write(pending, put, removed or [])
        parent_attempt_id = next((by for handle, by in self._written_by if handle is parent), None)
        handle = pending.publish(parent, parent_attempt_id, base).handle
        self._written_by.append((handle, attempt_id))
        self.versions[name.directory] = rows
        return handle

    def snapshot(self, version: int, rows: Content) -> IncrementalStateHandle:
        return self.run(None, version, rows, rows, [])

    def run(
        self, since: int | None, version: int, rows: Content, put: Content, removed: list[bytes]
    ) -> IncrementalStateHandle:
        """Upload the changes since a version, which make `rows` of that version's rows."""
        pending = begin_snapshot(self._store, version, self.column_families(version, rows), since)
        self.write(pending, put, removed)
        return pending.finish()


def row(number: int) -> dict[bytes, bytes]:
    return {number.to_bytes(8, "little"): f"value {number} ".encode() * (number % 4)}


def grow(sample: Sample) -> None:
    """A base in a shared file, changes inside of metadata, a replaced attempt, an empty version."""
    empty: Content = {name: {} for name in FAMILIES}
    first: Content = {name: {} for name in FAMILIES}
    for number in range(60):
        first["default"] |= row(number)
        first["timers"] |= row(1000 + number // 10)
        first["$times"] |= row(number // 3)
        first["list"] |= row(number // 4)
    version_1 = sample.commit(1, first, first)
    second = first | {"default": first["default"] | row(301)}
    gone = next(iter(row(7)))
    del second["default"][gone]
    version_2 = sample.commit(2, second, {"default": row(301)}, [gone], parent=version_1)
    base = sample.snapshot(2, second)
    third = second | {"timers": second["timers"] | row(400)}
    version_3 = sample.commit(3, third, {"timers": row(400)}, parent=version_2, base=base)
    fourth = third | {"default": third["default"] | row(501)}
    version_4 = sample.commit(4, fourth, {"default": row(501)}, parent=version_3)
    again = third | {"default": third["default"] | row(502)}
    sample.commit(4, again, {"default": row(502)}, parent=version_3)
    # Built on the attempt that was replaced, if the version alone is the name.
    version_5 = sample.commit(5, fourth, {}, parent=version_4)
    six = sample.commit(6, empty, {})
    alone = empty | {"default": row(1)}
    sample.commit(7, alone, {"default": row(1)}, parent=six)
    eighth = fourth | {"default": fourth["default"] | row(600), "list": row(601)}
    sample.commit(8, eighth, {"default": row(600), "list": row(601)}, parent=version_5)
    nine = sample.commit(9, alone, alone)
    tenth = alone | {"default": row(2) | row(3)}
    ten = sample.commit(10, tenth, {"default": row(2) | row(3)}, list(row(1)), parent=nine)
    eleventh = tenth | {"default": row(3)}
    eleven = sample.commit(11, eleventh, {}, list(row(2)), parent=ten)
    merged = sample.run(9, 11, eleventh, {"default": row(3)}, list(row(1)))
    twelfth = eleventh | {"timers": row(4)}
    sample.commit(12, twelfth, {"timers": row(4)}, parent=eleven, base=merged)


def write_operators(directory: Path) -> OperatorsMetadata:
    """A checkpoint of operators, of lists, maps and plain bytes, in the metadata and in files."""
    storage = FsCheckpointStorage(LocalFileSystem(), str(directory), 64)
    location = storage.initialize_location_for_checkpoint(1)
    subtasks: dict[int, StateObject] = {}
    for subtask, count in ((0, 3), (2, 200)):
        column_families = {
            "offsets": StateMetaInfo(tuple(range(0, 3 * count, 3)), Mode.SPLIT_DISTRIBUTE),
            "rules": StateMetaInfo((3 * count,), Mode.BROADCAST),
            "united": StateMetaInfo((), Mode.UNION),
        }
        subtasks[subtask] = OperatorStreamStateHandle(
            state_name_to_partition_offsets=column_families,
            delegate_state_handle=_stream(location, b"%d, " % subtask * (count + 1)),
        )
    operators = {
        "source": OperatorState("source", 3, 128, subtasks),
        "sink, of bytes": OperatorState(
            "sink, of bytes", 2, 2, {1: _stream(location, b"small"), 0: _stream(location, bytes(300))}
        ),
        "finished": OperatorState("finished", 7, 7, {}),
        "backend": OperatorState("backend", 1, 128, {0: _snapshot(location)}),
    }
    metadata = OperatorsMetadata(1, f"{1:016x}", int(time.time() * 1000), operators)
    with location.create_metadata_output_stream() as out:
        out.write(encode_operators(metadata, HandleContext(storage.files, location.checkpoint_directory)))
        out.close_and_finalize_checkpoint()
    return metadata


SOURCE = "file:///data/checkpoints/orders"
POINTED = {StoreId(0, 0): "000000000000000a", StoreId(0, 1, "left-keyToNumValues"): "000000000000000b"}


def write_savepoints(directory: Path) -> list[Savepoint]:
    """A savepoint of each kind: what makes it exist."""
    query = "f013e4c2-0000-4000-8000-000000000001"
    savepoints = []
    for number, kind in enumerate(KINDS):
        attempt_id = f"{number + 1:016x}"
        name = f"savepoint-{query[:6]}-{attempt_id[4:]}"
        path = LocalFileSystem().url(str(directory / name))
        pointed = kind == "pointer"
        savepoints.append(
            Savepoint(
                path=path,
                kind=kind,
                query_id=query,
                batch=41 + number,
                created_ms=1_700_000_000_000 + number,
                source=SOURCE,
                state_url=f"{SOURCE}/state" if pointed else f"{path}/state",
                name=name,
                attempt_id=attempt_id,
                checkpoints_dir="s3://bucket/state" if pointed else None,
                partitions=None if pointed else 200,
                attempts=POINTED if pointed else {},
            )
        )
        (directory / name).mkdir(parents=True)
        (directory / name / METADATA_FILE_NAME).write_bytes(encode_savepoint(savepoints[-1]))
    return savepoints


def describe_savepoint(savepoint: Savepoint) -> dict[str, Any]:
    """Describe a savepoint, independently of its location."""
    described = {field.name: getattr(savepoint, field.name) for field in fields(savepoint)}
    described["attempts"] = [
        [*astuple(store), attempt_id] for store, attempt_id in savepoint.attempts.items()
    ]
    described["state_url"] = described["state_url"].removeprefix(described.pop("path"))
    return described


NUMBERS = ListStateDescriptor("numbers", pa.int64())
NAMES = ListStateDescriptor("names", pa.utf8())
RULES = MapStateDescriptor("rules", pa.utf8(), pa.list_(pa.int64()))
RAW = ListStateDescriptor("raw", BytesSerializer())


def _snapshot(location: FsCheckpointStorageLocation) -> OperatorStreamStateHandle:
    backend = DefaultOperatorStateBackend()
    backend.get_list_state(NUMBERS).update([1, -2, 2**62])
    backend.get_union_list_state(NAMES).update(["a", "", "\u00e4"])
    backend.get_list_state(RAW).update([b"", b"raw"])
    backend.get_broadcast_state(RULES).put_all({"even": [2, 4], "none": []})
    backend.get_list_state(ListStateDescriptor("empty", pa.float64()))
    future = backend.snapshot(1, 0, location, CheckpointOptions(location.location_reference))
    future.run()
    handle = future.result().job_manager_owned_snapshot
    assert isinstance(handle, OperatorStreamStateHandle)
    return handle


def restored(handle: OperatorStreamStateHandle) -> list[Any]:
    """Return the states in a snapshot of `_snapshot`."""
    backend = DefaultOperatorStateBackend([handle])
    return [
        backend.get_list_state(NUMBERS).get(),
        backend.get_union_list_state(NAMES).get(),
        [raw.hex() for raw in backend.get_list_state(RAW).get()],
        dict(backend.get_broadcast_state(RULES).items()),
        sorted(backend.registered_state_names),
    ]


def _stream(location: FsCheckpointStorageLocation, data: bytes) -> StreamStateHandle:
    with location.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE) as out:
        out.write(data)
        handle = out.close_and_get_handle()
    assert handle is not None
    return handle


def describe_operators(metadata: OperatorsMetadata) -> dict[str, Any]:
    """Describe operator metadata, with the bytes of its streams."""
    handle = metadata.operator_states["backend"].subtasks[0]
    assert isinstance(handle, OperatorStreamStateHandle)
    described: dict[str, Any] = {
        "backend": restored(handle),
        "columnFamilies": [],
    }
    for name, state in metadata.operator_states.items():
        subtasks = []
        for number, handle in state.subtasks.items():
            infos = getattr(handle, "state_name_to_partition_offsets", {})
            with handle.open_input_stream() as stream:
                data = stream.read()
            assert (len(data), zlib.crc32(data)) == (handle.state_size, handle.checksum)
            names = [[n, int(info.distribution_mode), list(info.offsets)] for n, info in infos.items()]
            subtasks.append([number, names, data.hex()])
        described["columnFamilies"].append([name, state.parallelism, state.max_parallelism, subtasks])
    return described


def main(directory: Path) -> None:
    """Write the sample."""
    directory.mkdir(parents=True)
    options = StorageOptions(file_state_threshold=512)
    contents: list[Content] = []
    versions: dict[str, dict[str, int]] = {}
    for partition, (with_ids, codec) in enumerate([(False, None), (True, "zstd")]):
        sample = Sample(directory, partition, replace(options, compression=codec), with_ids=with_ids)
        grow(sample)
        for name, rows in sample.versions.items():
            if rows not in contents:
                contents.append(rows)
            versions.setdefault(f"0/{partition}", {})[name] = contents.index(rows)
    families = sample.column_families(2, sample.versions[CheckpointName(2, f"{2:016x}").directory])
    described = {
        "columnFamilies": [*map(asdict, families)],
        "operators": describe_operators(write_operators(directory / "operators")),
        "savepoints": [*map(describe_savepoint, write_savepoints(directory / "savepoints"))],
        "versions": versions,
        "rows": [
            {state: {k.hex(): v.hex() for k, v in content.items()} for state, content in rows.items()}
            for rows in contents
        ],
    }
    (directory / "rows.json").write_text(json.dumps(described, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
