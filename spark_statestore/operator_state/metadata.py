"""State of operators in a checkpoint, its metadata, and their encoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_statestore._version import __version__
from spark_statestore.formats.metadata import MetadataKind, decode_object, encode_object, reading
from spark_statestore.storage.handle_codec import HandleContext, decode_handle, encode_handle
from spark_statestore.storage.stream_handles import StateObject


@dataclass(frozen=True, slots=True)
class OperatorState:
    """The state of one operator: a handle for each of its subtasks that has state.

    Attributes
    ----------
    parallelism
        Its number of subtasks, 1 or more.
    max_parallelism
        The most subtasks that it can be given later, at least `parallelism`.
    subtasks
        A handle for each subtask, by number from 0; one without state is missing.
    """

    operator: str
    parallelism: int
    max_parallelism: int
    subtasks: Mapping[int, StateObject]

    def __post_init__(self) -> None:
        if not 1 <= self.parallelism <= self.max_parallelism:
            raise ValueError(
                f"operator {self.operator!r} has parallelism {self.parallelism}, which must be from 1 to its "
                f"largest one, {self.max_parallelism}"
            )
        outside = [subtask for subtask in self.subtasks if not 0 <= subtask < self.parallelism]
        if outside:
            raise ValueError(
                f"operator {self.operator!r} of parallelism {self.parallelism} has no subtasks {outside}"
            )


@dataclass(frozen=True, slots=True)
class OperatorsMetadata:
    """Metadata of a checkpoint of operators.

    Attributes
    ----------
    checkpoint_id
        Its number, 0 or more.
    attempt_id
        Names the attempt at it, 16 hex digits.
    created_ms
        When, in milliseconds since 1970.
    operator_states
        Each operator's state, by the operator's name.
    """

    checkpoint_id: int
    attempt_id: str
    created_ms: int
    operator_states: Mapping[str, OperatorState]
    written_by: str = __version__


def encode_operators(metadata: OperatorsMetadata, context: HandleContext) -> bytes:
    """Return the metadata object of a checkpoint of operators.

    Relative handles refer to its directory, `context`.
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
    }
    return bytes(encode_object(MetadataKind.OPERATORS, metadata.attempt_id, properties, handles))


def decode_operators(data: bytes, context: HandleContext, where: str) -> OperatorsMetadata:
    """Read the metadata object of a checkpoint of operators, checking all of it.

    See `decode_object` for errors.
    """
    decoded = decode_object(data, where)
    properties = decoded.properties
    handles = iter(decoded.handles)
    with reading(where):
        if decoded.kind is not MetadataKind.OPERATORS:
            raise ValueError(f"it describes {decoded.kind.name}, not the state of operators")
        if properties["checkpoint"] < 0:
            raise ValueError(f"its number is {properties['checkpoint']}")
        states = {
            node["operator"]: OperatorState(
                operator=node["operator"],
                parallelism=node["parallelism"],
                max_parallelism=node["maxParallelism"],
                subtasks={subtask: decode_handle(next(handles), context) for subtask in node["subtasks"]},
            )
            for node in properties["operators"]
        }
        if next(handles, None) is not None:
            raise ValueError("it has handles that belong to no operator")
        return OperatorsMetadata(
            checkpoint_id=properties["checkpoint"],
            attempt_id=decoded.attempt_id,
            created_ms=properties["createdMs"],
            operator_states=states,
            written_by=properties["writtenBy"],
        )
