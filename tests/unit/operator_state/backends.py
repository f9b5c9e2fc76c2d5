"""Backends for tests: snapshots of them, and serializers of every sort."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from spark_statestore.operator_state import (
    Compatibility,
    DefaultOperatorStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    StateSerializer,
)
from spark_statestore.operator_state.snapshot_strategy import CheckpointOptions
from spark_statestore.storage import CheckpointStorageLocationReference
from spark_statestore.storage.memory_streams import MemCheckpointStreamFactory
from spark_statestore.storage.operator_handles import OperatorStateHandle
from spark_statestore.storage.streams import CheckpointStreamFactory

MEMORY = MemCheckpointStreamFactory(1 << 20)

NUMBERS = ListStateDescriptor("numbers", pa.int64())
OFFSETS = ListStateDescriptor("offsets", pa.struct([("topic", pa.utf8()), ("parts", pa.list_(pa.int64()))]))
UNION = ListStateDescriptor("union", pa.utf8())
RULES = MapStateDescriptor("rules", pa.utf8(), pa.list_(pa.int64()))
FLAGS = MapStateDescriptor("flags", pa.int32(), pa.bool_())


OPTIONS = CheckpointOptions(CheckpointStorageLocationReference.default())


def snapshot_of(
    backend: DefaultOperatorStateBackend, factory: CheckpointStreamFactory = MEMORY
) -> OperatorStateHandle | None:
    """Return the handle of a snapshot, which this thread writes."""
    future = backend.snapshot(1, 0, factory, OPTIONS)
    future.run()
    return future.result().job_manager_owned_snapshot


def backend_with(**states: Any) -> DefaultOperatorStateBackend:
    """A backend with the states above."""
    backend = DefaultOperatorStateBackend()
    if "numbers" in states:
        backend.get_list_state(NUMBERS).update(states["numbers"])
    if "offsets" in states:
        backend.get_list_state(OFFSETS).update(states["offsets"])
    if "union" in states:
        backend.get_union_list_state(UNION).update(states["union"])
    if "rules" in states:
        backend.get_broadcast_state(RULES).put_all(states["rules"])
    if "flags" in states:
        backend.get_broadcast_state(FLAGS).put_all(states["flags"])
    return backend


class Point:
    """Something of the user's that can be changed."""

    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)

    __hash__ = None


class PointSerializer(StateSerializer[Point]):
    """Points as JSON; version 1 had them as two decimals with a comma."""

    def __init__(self, version: int = 2) -> None:
        self.version = version

    @property
    def snapshot(self) -> dict[str, Any]:
        return {"serializer": "point", "version": self.version, "order": ("x", "y")}

    def serialize(self, value: Point) -> bytes:
        if self.version == 1:
            return f"{value.x},{value.y}".encode()
        return json.dumps([value.x, value.y]).encode()

    def deserialize(self, data: bytes) -> Point:
        return Point(*(map(int, data.split(b",")) if self.version == 1 else json.loads(data)))

    def check_compatibility(self, previous: dict[str, Any]) -> Compatibility:
        if previous.get("serializer") == "point" and previous["version"] < self.version:
            return Compatibility.COMPATIBLE_AFTER_MIGRATION
        return super().check_compatibility(previous)

    def migrate(self, data: bytes, previous: dict[str, Any]) -> Point:
        return PointSerializer(previous["version"]).deserialize(data)
