"""What the JVM may ask, and what is done then."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from spark_statestore.checkpoint import history
from spark_statestore.checkpoint.files import MemoryFileSystem, join
from spark_statestore.checkpoint.files.work import take_retries
from spark_statestore.checkpoint.metadata import NamedState, StoreId
from spark_statestore.checkpoint.pending import PendingCheckpoint, PendingSnapshot
from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.checkpoint.stored import local_streams, starts_with_newest, stored_messages
from spark_statestore.checkpoint.versions import VersionStore
from spark_statestore.errors import ProtocolError
from spark_statestore.options import StorageOptions
from spark_statestore.server.checks import check_request
from spark_statestore.server.gate import LARGE_BYTES, Gate, Visit
from spark_statestore.server.memory import recent_resident_bytes
from spark_statestore.server.protocol import FrameSocket, Kind
from spark_statestore.server.watch import RequestWatch
from spark_statestore.state.handles import IncrementalStateHandle
from spark_statestore.state.handles.codec import decode_handle, encode_handle

__all__ = ["Requests"]

# Stores whose knowledge for retention is remembered; a forgotten one lists its directory again.
_REMEMBERED_STORES = 20_000

# Bytes of changes from which on a request is not like most.
_LARGE_REQUEST = 8 << 20


class Requests:
    """Serves requests, for all connections; each runs on its connection's thread."""

    def __init__(self) -> None:
        self._stores: OrderedDict[str, VersionStore] = OrderedDict()
        self._lock = threading.Lock()
        self._watch = RequestWatch()
        self._gate = Gate()
        self._served: dict[str, Callable[[dict[str, Any], FrameSocket, Visit], None]] = {
            "load": self._load,
            "lineage": self._lineage,
            "changes": self._changes,
            "commit": self._commit,
            "materialise": self._materialise,
            "cleanup": self._cleanup,
        }

    def serve(self, request: dict[str, Any], connection: FrameSocket) -> None:
        """Serve one request whose control frame was read, sending the whole answer.

        Raises
        ------
        ProtocolError
            If there is no such request, or something in it is missing or is not what it must be.
        StateStoreError
            If it fails.
        """
        check_request(request)
        served = self._served[request["op"]]
        with self._watch.over(request, connection) as work, self._gate.visit(work) as visit:
            served(request, connection, visit)

    def _load(self, request: dict[str, Any], connection: FrameSocket, visit: Visit) -> None:
        if "objects" in request:
            store = _store_of(request["store"], _receive_objects(connection, request), request.get("kept"))
        else:
            _expect_end(connection)
            store = self._store(request["store"])
        name = CheckpointName(request["version"], request.get("id"))
        metadata = store.load(name)
        if "from" in request:
            metadata = history.replay(store, CheckpointName(request["from"], request.get("fromId")), name)
        positions = {state.name: i for i, state in enumerate(metadata.states)}
        answer = _describe(metadata.handle, metadata.attempt) | _told()
        answer["states"] = [state.to_json() for state in metadata.states]
        answer["bytesRead"] = metadata.handle.state_size
        is_stored = bool(request.get("asStored"))
        files = local_streams(store, name, metadata) if is_stored else None
        if is_stored:
            answer["newestFirst"] = starts_with_newest(metadata)
        if files is not None:
            answer["files"] = files
        elif metadata.handle.state_size >= LARGE_BYTES:
            visit.enter()
        connection.send_json(Kind.CONTROL, answer)
        connection.send(Kind.HANDLE, encode_handle(metadata.handle, store.context))
        if files is not None:
            pass
        elif is_stored:
            for stored in stored_messages(store, name, metadata):
                if stored is None:
                    connection.send(Kind.STREAM)
                else:
                    connection.send(Kind.DATA, stored[1], positions[stored[0]])
        else:
            for state, batch in store.read(name, metadata):
                connection.send(Kind.DATA, batch.serialize(), positions[state])
        connection.send(Kind.END)

    def _lineage(self, request: dict[str, Any], connection: FrameSocket, visit: Visit) -> None:
        _expect_end(connection)
        store = self._store(request["store"])
        past = history.lineage(
            store, CheckpointName(request["version"], request.get("id")), request["oldest"]
        )
        state = history.described_state(store, past, request["state"])
        connection.send_json(
            Kind.CONTROL,
            {
                "attempts": [version.metadata.attempt for version in past],
                "state": state.to_json(),
            },
        )
        connection.send(Kind.END)

    def _changes(self, request: dict[str, Any], connection: FrameSocket, visit: Visit) -> None:
        _expect_end(connection)
        store = self._store(request["store"])
        attempt, wanted = request["attempt"], request["state"]
        name = CheckpointName(request["version"], attempt if request["idInPath"] else None)
        version = history.past_version(store, name, attempt)
        connection.send_json(Kind.CONTROL, {})
        for _, batch in history.changes(store, version, [wanted]):
            connection.send(Kind.DATA, batch.serialize())
        connection.send(Kind.END)

    def _commit(self, request: dict[str, Any], connection: FrameSocket, visit: Visit) -> None:
        store = self._store(request["store"])
        attempt = request["attempt"]
        name = CheckpointName(request["version"], attempt if request["idInPath"] else None)
        parent = self._receive_handle(connection, store) if request["hasParent"] else None
        base = self._receive_handle(connection, store) if request["hasBase"] else None
        start = time.perf_counter_ns()
        pending = store.begin(name, attempt, _states(request))
        nanos = time.perf_counter_ns() - start
        nanos += _receive_changes(connection, pending, visit)
        start = time.perf_counter_ns()
        done = pending.publish(parent, request.get("parentAttempt"), base, request.get("oldestBase", 0))
        answer = _describe(done.handle, attempt)
        answer["storeNanos"] = nanos + time.perf_counter_ns() - start
        answer["bytesWritten"] = done.bytes_written
        answer["objectsWritten"] = done.objects_written
        self._answer(connection, answer, done.encoded_handle, done.metadata)
        # The task goes on meanwhile.
        store.prepare_next(name)
        _give_back(done.bytes_written)

    def _materialise(self, request: dict[str, Any], connection: FrameSocket, visit: Visit) -> None:
        store = self._store(request["store"])
        snapshot = store.begin_snapshot(request["version"], _states(request))
        _receive_changes(connection, snapshot, visit)
        try:
            handle = snapshot.finish()
            self._answer(
                connection, {"bytesWritten": handle.state_size}, encode_handle(handle, store.context)
            )
        except BaseException:
            # Nobody knows of it, though it may be there.
            store.expect_strays()
            raise
        _give_back(handle.state_size)

    def _cleanup(self, request: dict[str, Any], connection: FrameSocket, visit: Visit) -> None:
        _expect_end(connection)
        store = self._store(request["store"])
        attempt = request["attempt"]
        removed = store.cleanup(
            CheckpointName(request["version"], attempt if request["idInPath"] else None),
            attempt,
            request["retainFrom"],
            request["mostVersions"],
        )
        connection.send_json(Kind.CONTROL, {"deleted": removed} | _told())
        connection.send(Kind.END)

    def _receive_handle(self, connection: FrameSocket, store: VersionStore) -> IncrementalStateHandle:
        frame = connection.receive()
        if frame is None or frame.kind is not Kind.HANDLE:
            raise ProtocolError("a handle was announced and did not follow")
        encoded = memoryview(frame.payload).tobytes()
        if (known := store.known_handle(encoded)) is not None:
            return known
        handle = decode_handle(encoded, store.context)
        if not isinstance(handle, IncrementalStateHandle):
            raise ProtocolError(f"a {type(handle).__name__} is not the handle of a version")
        return handle

    def _answer(
        self, connection: FrameSocket, answer: dict[str, Any], handle: bytes, metadata: bytes | None = None
    ) -> None:
        connection.send_json(Kind.CONTROL, answer | _told())
        connection.send(Kind.HANDLE, handle)
        if metadata is not None:
            connection.send(Kind.OBJECT, metadata)
        connection.send(Kind.END)

    def _store(self, node: dict[str, Any]) -> VersionStore:
        key = node["instance"]
        with self._lock:
            store = self._stores.get(key)
            if store is not None:
                self._stores.move_to_end(key)
                return store
        store = _store_of(node)
        if store.options.is_kept_elsewhere:
            return store
        with self._lock:
            store = self._stores.setdefault(key, store)
            if len(self._stores) > _REMEMBERED_STORES:
                self._stores.popitem(last=False)
        return store


def _store_of(
    node: dict[str, Any], kept: MemoryFileSystem | None = None, kept_range: list[int] | None = None
) -> VersionStore:
    return VersionStore(
        StoreId(node["operator"], node["partition"], node["name"]),
        node["root"],
        StorageOptions.parse(node["options"]),
        kept,
        (kept_range[0], kept_range[1]) if kept_range else None,
        node.get("commits"),
    )


def _receive_objects(connection: FrameSocket, request: dict[str, Any]) -> MemoryFileSystem:
    """The objects that the request brings, for as long as it is served."""
    kept = MemoryFileSystem()
    for path in request["objects"]:
        frame = connection.receive()
        if frame is None or frame.kind is not Kind.OBJECT:
            raise ProtocolError(f"the object {path} was announced and did not follow")
        kept.replace(join(request["store"]["root"], path), frame.payload)
    _expect_end(connection)
    return kept


def _states(request: dict[str, Any]) -> tuple[NamedState, ...]:
    try:
        return tuple(NamedState.from_json(node) for node in request["states"])
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(
            f"the request {request['op']!r} has a state that makes no sense: {error!r}"
        ) from error


def _describe(handle: IncrementalStateHandle, attempt: str) -> dict[str, Any]:
    return {
        "attempt": attempt,
        "chainLength": len(handle),
        "baseVersion": handle.base_version,
        "baseBytes": handle.base_size,
        "deltaBytes": handle.delta_size,
    }


def _told() -> dict[str, Any]:
    """What answers say of the backend itself."""
    told = {"memoryBytes": recent_resident_bytes()}
    if retries := take_retries():
        told["storageRetries"] = retries
    return told


def _receive_changes(
    connection: FrameSocket, pending: PendingCheckpoint | PendingSnapshot, visit: Visit
) -> int:
    """Write the changes that follow; returns the nanoseconds that writing took."""
    nanos = 0
    received = 0
    try:
        while True:
            frame = connection.receive()
            if frame is None:
                raise ConnectionResetError("the connection was closed within a request")
            if frame.kind is Kind.END:
                return nanos
            if frame.kind is not Kind.DATA:
                raise ProtocolError(f"a {frame.kind.name} frame among the changes")
            received += frame.payload.size
            if received >= LARGE_BYTES:
                visit.enter()
            start = time.perf_counter_ns()
            try:
                if frame.checksum is None:
                    pending.write(frame.state, frame.payload)
                else:
                    pending.write_sealed(frame.state, frame.payload, frame.checksum)
            except (pa.ArrowException, IndexError) as error:
                raise ProtocolError(f"changes that cannot be read: {error}") from error
            nanos += time.perf_counter_ns() - start
    except BaseException:
        pending.abandon()
        raise


def _give_back(written: int) -> None:
    """Return the memory that a large request took, which the allocator would keep for the next one."""
    if written >= _LARGE_REQUEST:
        pa.default_memory_pool().release_unused()


def _expect_end(connection: FrameSocket) -> None:
    frame = connection.receive()
    if frame is None or frame.kind is not Kind.END:
        raise ProtocolError("the request goes on where it should end")
