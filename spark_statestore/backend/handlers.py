"""Handlers serve the requests that the JVM sends."""

from __future__ import annotations

import contextlib
import math
import mmap
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from spark_statestore.backend.checkpoint_files import FILE_HANDLERS
from spark_statestore.backend.open_stores import OpenStores, open_store
from spark_statestore.backend.partitions import PartitionJobs
from spark_statestore.backend.protocol import FrameSocket, Kind, check_request
from spark_statestore.backend.supervision import LARGE_BYTES, Permit, Supervisor
from spark_statestore.errors import ProtocolError
from spark_statestore.files import MemoryFileSystem, check_directories, join
from spark_statestore.files.request_context import take_retries
from spark_statestore.options import DEFAULT_MIN_DELTAS, StorageOptions
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.handle_codec import decode_handle, encode_handle
from spark_statestore.storage.incremental_handle import IncrementalStateHandle
from spark_statestore.storage.snapshot_plan import UNBOUNDED, plan_snapshots
from spark_statestore.store.changelog import EncodedBatch
from spark_statestore.store.cleanup import discard_versions
from spark_statestore.store.commit import begin_snapshot, commit_version
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.healing import heal
from spark_statestore.store.lineage import (
    PastVersion,
    changes,
    column_family_of,
    lineage,
    past_version,
    replay,
    streams_since,
)
from spark_statestore.store.metadata import ColumnFamily
from spark_statestore.store.reader import (
    damaged_streams,
    read_version,
    stored_messages,
    streams_to_load,
    wanted_copy,
)
from spark_statestore.store.scrub import Scrub

# Bytes of changes from which on a request's memory is returned to the system.
_RELEASED_BYTES = 8 << 20


class Requests:
    """The handlers of all connections' requests; each request runs on its connection's thread."""

    def __init__(self) -> None:
        self._stores = OpenStores()
        self._supervisor = Supervisor()
        self._scrub = Scrub()
        self._handlers: dict[str, Callable[[dict[str, Any], FrameSocket, Permit], None]] = {
            "load": self._load,
            "lineage": self._lineage,
            "changes": self._changes,
            "commit": self._commit,
            "publish": self._publish,
            "snapshot": self._upload_snapshot,
            "cleanup": self._cleanup,
            "check": self._check,
            "close": self._close,
            "settlePartitions": PartitionJobs().settle,
            **FILE_HANDLERS,
        }

    def serve(self, request: dict[str, Any], connection: FrameSocket) -> None:
        """Serve one request whose control frame was received, and send the whole answer."""
        check_request(request)
        handler = self._handlers[request["op"]]
        with self._supervisor.supervise(request, connection) as permit:
            handler(request, connection, permit)

    def _load(self, request: dict[str, Any], connection: FrameSocket, permit: Permit) -> None:
        if "metadataPaths" in request:
            store = open_store(
                request["store"], _receive_objects(connection, request), request.get("driverRange")
            )
        else:
            connection.expect_end()
            store = self._stores.get(request["store"])
        name = CheckpointName(request["version"], request.get("id"))
        metadata = store.load(name)
        if "from" in request:
            metadata = replay(store, CheckpointName(request["from"], request.get("fromId")), name)
        raw = bool(request.get("raw"))
        later = None
        if raw and "after" in request and "afterAttemptId" in request:
            later = streams_since(
                store, PastVersion(name, metadata), request["after"], request["afterAttemptId"]
            )
        streams = streams_to_load(store, name, metadata, bool(request.get("local")), later) if raw else None
        size = streams.answer["bytesRead"] if streams else metadata.handle.state_size
        if size >= LARGE_BYTES and not (streams and streams.are_files):
            permit.acquire()
        # If the JVM could not read the streams, one of them may be damaged.
        damage = {} if raw else damaged_streams(store, name, metadata)
        if damage:
            metadata = heal(store, name, metadata, damage)
        answer = _describe(
            request, store, metadata.handle, metadata.attempt_id, _rows_of(metadata.column_families)
        )
        answer |= _process_metrics()
        if damage:
            answer["streamsRepaired"] = len(damage)
            # The next commit writes everything, so that later versions do not need the damaged streams.
            answer["plan"]["fullUpTo"] = UNBOUNDED
        answer |= streams.answer if streams else {"bytesRead": metadata.handle.state_size}
        answer["columnFamilies"] = [family.to_json() for family in metadata.column_families]
        connection.send_json(Kind.CONTROL, answer)
        connection.send(Kind.HANDLE, encode_handle(metadata.handle, store.context))
        positions = {family.name: i for i, family in enumerate(metadata.column_families)}
        if streams and not streams.are_files:
            for stored in stored_messages(store, name, metadata, streams.entries):
                if stored is None:
                    connection.send(Kind.STREAM)
                else:
                    connection.send(Kind.DATA, stored[1], positions[stored[0]])
        elif not streams:
            for family, batch in read_version(store, name, metadata):
                connection.send(Kind.DATA, batch.serialize(), positions[family])
        connection.send(Kind.END)

    def _check(self, request: dict[str, Any], connection: FrameSocket, permit: Permit) -> None:
        connection.expect_end()
        StorageOptions.parse(request["options"])
        if request["directories"]:
            check_directories(request["options"])
        _answer(connection, {})

    def _close(self, request: dict[str, Any], connection: FrameSocket, permit: Permit) -> None:
        connection.expect_end()
        self._stores.close(request["instances"], request["runs"])
        _answer(connection, {})

    def _lineage(self, request: dict[str, Any], connection: FrameSocket, permit: Permit) -> None:
        connection.expect_end()
        store = self._stores.get(request["store"])
        past = lineage(store, CheckpointName(request["version"], request.get("id")), request["oldest"])
        family = column_family_of(store, past, request["columnFamily"])
        described = [{older.name: older.to_json() for older in v.metadata.column_families} for v in past]
        answer = {
            "attempts": [version.metadata.attempt_id for version in past],
            "columnFamily": family.to_json(),
            "columnFamilies": [families.get(family.name) for families in described],
        }
        connection.send_json(Kind.CONTROL, answer)
        connection.send(Kind.END)

    def _changes(self, request: dict[str, Any], connection: FrameSocket, permit: Permit) -> None:
        connection.expect_end()
        store = self._stores.get(request["store"])
        version = past_version(store, _name_of(request), request["attemptId"])
        connection.send_json(Kind.CONTROL, {})
        for _, batch in changes(store, version, [request["columnFamily"]]):
            connection.send(Kind.DATA, batch.serialize())
        connection.send(Kind.END)

    def _commit(self, request: dict[str, Any], connection: FrameSocket, permit: Permit) -> None:
        store = self._stores.get(request["store"])
        attempt_id = request["attemptId"]
        column_families = _column_families(request)
        rows = _rows_of(column_families)
        parent = self._receive_handle(connection, store) if request["hasParent"] else None
        base = self._receive_handle(connection, store) if request["hasBase"] else None
        changes = _ChangesReceiver(connection, permit, column_families)
        start = time.perf_counter_ns()
        commit = commit_version(
            store,
            _name_of(request),
            attempt_id,
            column_families,
            changes,
            parent=parent,
            parent_attempt_id=request.get("parentAttemptId"),
            base=base,
            oldest_base_version=request.get("oldestBaseVersion", 0),
            merge=bool(request.get("merge")),
            hand_over=bool(request.get("handOver")),
        )
        if commit.merged:
            self._stores.keep_unpublished(request["store"], store)
        answer = _describe(request, store, commit.handle, attempt_id, rows)
        _plan_repair(store, commit.handle, answer)
        answer["merged"] = commit.merged
        answer["storeNanos"] = time.perf_counter_ns() - start - changes.wait_nanos
        answer["bytesWritten"] = commit.bytes_written
        answer["objectsWritten"] = commit.objects_written
        _answer(connection, answer, commit.encoded_handle, commit.metadata)
        if commit.next_directory is not None:
            # After the answer, so that the task does not wait for it.
            with contextlib.suppress(OSError):
                store.files.prepare(commit.next_directory)
        _release_memory(commit.bytes_written)
        if time.monotonic() >= store.scrub_at:
            self._scrub.submit(store)

    def _publish(self, request: dict[str, Any], connection: FrameSocket, permit: Permit) -> None:
        store = self._stores.get(request["store"])
        objects = [
            (path, memoryview(_receive_object(connection, path)).tobytes())
            for path in request.get("objects", ())
        ]
        connection.expect_end()
        try:
            missing, size = store.publish_merged(
                request["attempts"], objects, request.get("discarded", ()), version=request["version"]
            )
        finally:
            self._stores.keep_unpublished(request["store"], store)
        _answer(connection, {"missing": missing, "bytesWritten": size} | _merged_usage(store))
        if store.merged is not None and store.merged.has_garbage():
            # The batch does not wait for it, nor does the next request of this connection.
            threading.Thread(target=store.sweep_merged, daemon=True).start()

    def _upload_snapshot(self, request: dict[str, Any], connection: FrameSocket, permit: Permit) -> None:
        store = self._stores.get(request["store"])
        column_families = _column_families(request)
        if not request.get("since", 0) < request["version"]:
            raise ProtocolError(
                f"a run of the changes since version {request['since']} to {request['version']}"
            )
        snapshot = begin_snapshot(store, request["version"], column_families, request.get("since"))
        snapshot.write_encoded(_ChangesReceiver(connection, permit, column_families))
        try:
            handle = snapshot.finish()
            answer = {"bytesWritten": handle.state_size}
            _answer(connection, answer | wanted_copy(store, handle), encode_handle(handle, store.context))
        except BaseException:
            # The JVM does not know of the snapshot, though its file may exist.
            store.retention.is_complete = False
            raise
        _release_memory(handle.state_size)

    def _cleanup(self, request: dict[str, Any], connection: FrameSocket, permit: Permit) -> None:
        connection.expect_end()
        store = self._stores.get(request["store"])
        merged = store.merged if request.get("handOver") else None
        if merged is not None:
            merged.reports_discards = True
        removed = discard_versions(
            store, _name_of(request), request["attemptId"], request["retainFrom"], request["mostVersions"]
        )
        answer: dict[str, Any] = {"deleted": removed}
        if merged is not None:
            answer["discarded"] = merged.take_discarded()
        _answer(connection, answer)

    def _receive_handle(self, connection: FrameSocket, store: StoreDirectory) -> IncrementalStateHandle:
        frame = connection.receive()
        if frame is None or frame.kind is not Kind.HANDLE:
            raise ProtocolError("a handle was announced and did not follow")
        encoded = memoryview(frame.payload).tobytes()
        # A commit usually builds on the one before it.
        if (newest := store.newest_handle) is not None and newest[0] == encoded:
            return newest[1]
        handle = decode_handle(encoded, store.context)
        if not isinstance(handle, IncrementalStateHandle):
            raise ProtocolError(f"a {type(handle).__name__} is not the handle of a version")
        return handle


def _answer(
    connection: FrameSocket,
    answer: dict[str, Any],
    handle: bytes | None = None,
    metadata: bytes | None = None,
) -> None:
    connection.send_json(Kind.CONTROL, answer | _process_metrics())
    if handle is not None:
        connection.send(Kind.HANDLE, handle)
    if metadata is not None:
        connection.send(Kind.OBJECT, metadata)
    connection.send(Kind.END)


def _merged_usage(store: StoreDirectory) -> dict[str, Any]:
    if store.merged is None:
        return {}
    usage = store.merged.usage()
    return {
        "objectsWritten": store.merged.take_created(),
        "mergedLogicalFiles": usage.logical_files,
        "mergedPhysicalFiles": usage.physical_files,
        "mergedLiveBytes": usage.live_bytes,
        "mergedStorageBytes": usage.storage_bytes,
    }


def _name_of(request: dict[str, Any]) -> CheckpointName:
    return CheckpointName(request["version"], request["attemptId"] if request["idInPath"] else None)


def _receive_objects(connection: FrameSocket, request: dict[str, Any]) -> MemoryFileSystem:
    """Receive the objects that are kept on the driver and follow the request."""
    objects = MemoryFileSystem()
    for path in request["metadataPaths"]:
        objects.replace(join(request["store"]["root"], path), _receive_object(connection, path))
    connection.expect_end()
    return objects


def _receive_object(connection: FrameSocket, path: str) -> pa.Buffer:
    frame = connection.receive()
    if frame is None or frame.kind is not Kind.OBJECT:
        raise ProtocolError(f"the object {path} was announced and did not follow")
    return frame.payload


def _column_families(request: dict[str, Any]) -> tuple[ColumnFamily, ...]:
    try:
        return tuple(ColumnFamily.from_json(node) for node in request["columnFamilies"])
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(
            f"the request {request['op']!r} has a column family that is not valid: {error!r}"
        ) from error


def _rows_of(column_families: tuple[ColumnFamily, ...]) -> int:
    return sum(family.stored_rows for family in column_families)


def _describe(
    request: dict[str, Any],
    store: StoreDirectory,
    handle: IncrementalStateHandle,
    attempt_id: str,
    rows: int,
) -> dict[str, Any]:
    plan = plan_snapshots(
        handle,
        rows,
        request["store"].get("minDeltasForSnapshot", DEFAULT_MIN_DELTAS),
        known_since=request.get("knownSince"),
        background=store.options.storage != "memory",
        is_remote=not store.is_local,
    )
    return {
        "attemptId": attempt_id,
        "chainLength": len(handle),
        "baseVersion": handle.base_version,
        "streams": [entry.version for entry in handle.runs_and_deltas],
        "plan": {
            "inlineUpTo": plan.inline_up_to,
            "fullUpTo": plan.full_up_to,
            "upload": plan.upload,
            "fullUpToAtTick": plan.full_up_to_at_tick,
            "uploadAtTick": plan.upload_at_tick,
        },
    }


def _plan_repair(store: StoreDirectory, handle: IncrementalStateHandle, answer: dict[str, Any]) -> None:
    """Have the next commit write everything if a version has streams that a scrub found damaged."""
    if not (damaged := store.damaged):
        return
    if damaged.isdisjoint(entry.state.stream_state_handle_id for entry in handle):
        answer["streamsRepaired"] = len(damaged)
        store.damaged -= damaged
    else:
        answer["plan"]["fullUpTo"] = UNBOUNDED


def _process_metrics() -> dict[str, Any]:
    """Return the metrics of the backend process that answers carry."""
    metrics = {"memoryBytes": _recent_resident_bytes()}
    if retries := take_retries():
        metrics["storageRetries"] = retries
    return metrics


class _ChangesReceiver:
    """The changes that follow a request, received as they are iterated.

    A permit is acquired if they are large. The nanoseconds `wait_nanos` were spent on waiting for frames and
    for the permit.
    """

    def __init__(
        self, connection: FrameSocket, permit: Permit, column_families: tuple[ColumnFamily, ...]
    ) -> None:
        self._connection = connection
        self._permit = permit
        self._column_families = column_families
        self.wait_nanos = 0

    def __iter__(self) -> Iterator[EncodedBatch]:
        received = 0
        while True:
            start = time.perf_counter_ns()
            frame = self._connection.receive()
            if frame is None:
                raise ConnectionResetError("the connection was closed within a request")
            received += frame.payload.size
            if received >= LARGE_BYTES:
                self._permit.acquire()
            self.wait_nanos += time.perf_counter_ns() - start
            if frame.kind is Kind.END:
                return
            if frame.kind is not Kind.DATA:
                raise ProtocolError(f"a {frame.kind.name} frame among the changes")
            if frame.column_family >= len(self._column_families):
                raise ProtocolError(
                    f"changes of column family {frame.column_family}, which the request lacks"
                )
            yield self._column_families[frame.column_family].name, frame.payload, frame.checksum


def _release_memory(bytes_written: int) -> None:
    """Return a large request's memory to the system, which the allocator would keep for the next one."""
    if bytes_written >= _RELEASED_BYTES:
        pa.default_memory_pool().release_unused()


# Counting the pages takes longer than the rest of an answer.
_MEASURE_SECONDS = 1.0
_last_measured = (-math.inf, 0)


def _recent_resident_bytes() -> int:
    """Return `_resident_bytes`, measured at most a second ago."""
    global _last_measured
    now = time.monotonic()
    if now - _last_measured[0] > _MEASURE_SECONDS:
        _last_measured = (now, _resident_bytes())
    return _last_measured[1]


def _resident_bytes() -> int:
    """Return the resident memory of this process in bytes; its peak where the system does not report it."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
