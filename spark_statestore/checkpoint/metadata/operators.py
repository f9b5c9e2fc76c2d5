"""What the metadata of a checkpoint of operators says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_statestore._version import __version__
from spark_statestore.checkpoint.metadata.format import MetadataKind, decode_object, encode_object, reading
from spark_statestore.state.handles.codec import HandleContext, decode_handle, encode_handle
from spark_statestore.state.operator_state import OperatorState

__all__ = ["OperatorsMetadata", "decode_operators", "encode_operators"]


@dataclass(frozen=True, slots=True)
class OperatorsMetadata:
    """What a checkpoint of operators says of itself.

    Attributes
    ----------
    checkpoint_id
        Its number, 0 or more.
    attempt
        Names the attempt at it, 16 hex digits.
    created_ms
        When, in milliseconds since 1970.
    operator_states
        Each operator's state, by the operator's name.
    properties
        What kind of checkpoint it is, as JSON; see `CheckpointProperties`.
    written_by
        Version of this package.
    """

    checkpoint_id: int
    attempt: str
    created_ms: int
    operator_states: Mapping[str, OperatorState]
    properties: Mapping[str, Any] = field(default_factory=dict)
    written_by: str = __version__


def encode_operators(metadata: OperatorsMetadata, context: HandleContext) -> bytes:
    """The metadata object of a checkpoint of operators.

    Parameters
    ----------
    context
        What the handles are relative to: the checkpoint's directory.
    """
    handles: list[bytes] = []
    operators = []
    for name, state in metadata.operator_states.items():
        operators.append(
            {
                "operator": name,
                "parallelism": state.parallelism,
                "maxParallelism": state.max_parallelism,
                "subtasks": list(state.subtasks),
            }
        )
        handles += [encode_handle(handle, context) for handle in state.subtasks.values()]
    properties = {
        "checkpoint": metadata.checkpoint_id,
        "createdMs": metadata.created_ms,
        "writtenBy": metadata.written_by,
        "operators": operators,
        "properties": dict(metadata.properties),
    }
    return bytes(encode_object(MetadataKind.OPERATORS, metadata.attempt, properties, handles))


def decode_operators(data: bytes, context: HandleContext, where: str) -> OperatorsMetadata:
    """Read the metadata object of a checkpoint of operators, checking all of it.

    Parameters
    ----------
    where
        The object's URL, for messages.

    Raises
    ------
    CorruptCheckpointError
        If the bytes are not those that were written, or not those of a checkpoint of operators.
    UnsupportedFormatError
        If a newer release wrote them.
    """
    found = decode_object(data, where)
    properties = found.properties
    handles = iter(found.handles)
    with reading(where):
        if found.kind is not MetadataKind.OPERATORS:
            raise ValueError(f"it describes {found.kind.name}, not the state of operators")
        if properties["checkpoint"] < 0:
            raise ValueError(f"its number is {properties['checkpoint']}")
        states = {
            node["operator"]: OperatorState(
                operator=node["operator"],
                parallelism=node["parallelism"],
                max_parallelism=node["maxParallelism"],
                subtasks={
                    subtask: decode_handle(next(handles), context, found.handle_version)
                    for subtask in node["subtasks"]
                },
            )
            for node in properties["operators"]
        }
        if next(handles, None) is not None:
            raise ValueError("it has handles that belong to no operator")
        return OperatorsMetadata(
            checkpoint_id=properties["checkpoint"],
            attempt=found.attempt,
            created_ms=properties["createdMs"],
            operator_states=states,
            properties=properties["properties"],
            written_by=properties["writtenBy"],
        )
