"""State store providers that a checkpoint can be converted from and to, and what each can hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

from spark_statestore.errors import ConversionError, OptionError
from spark_statestore.query import StatefulOperator
from spark_statestore.query.operators import JOIN
from spark_statestore.session import PROVIDER_CLASS

Target = Literal["statestore", "rocksdb", "hdfs"]

_SPARKS: Final = "org.apache.spark.sql.execution.streaming.state."
_ROCKSDB: Final = f"{_SPARKS}RocksDBStateStoreProvider"
_HDFS: Final = f"{_SPARKS}HDFSBackedStateStoreProvider"

_OPERATORS: Final = {
    "stateStoreSave",
    "StatefulStreamlineAggregate",
    "sessionWindowStateStoreSaveExec",
    "dedupe",
    "dedupeWithinWatermark",
    "globalLimit",
    "flatMapGroupsWithState",
    "applyInPandasWithState",
    JOIN,
    "transformWithStateExec",
    "transformWithStateInPandasExec",
    "transformWithStateInPySparkExec",
}


def require_target(to: str) -> None:
    """Raise `OptionError` if there is no such target."""
    if to not in get_args(Target):
        raise OptionError(f"to is {to!r}, but it must be one of {', '.join(get_args(Target))}.")


def is_own(provider: str) -> bool:
    """Return True for the class of this package."""
    return provider == PROVIDER_CLASS


def has_families(operator: StatefulOperator) -> bool:
    """Return True if an operator keeps several column families in one store."""
    return operator.version != "v1"


def require_known(operators: Sequence[StatefulOperator]) -> None:
    """Raise if there is an operator whose state may not be understood in full."""
    for operator in operators:
        if operator.name not in _OPERATORS:
            raise ConversionError(
                f"operator {operator.id} ({operator.name}) is unknown to this release of spark-statestore, "
                "which might miss a part of its state. Upgrade spark-statestore; nothing was changed."
            )


def target_format(to: str, checkpoint_format: int | None, *, has_ids: bool) -> int:
    """Return the checkpoint format of a target, or raise if its store cannot have it.

    By default it is that of the source, of which `has_ids` is the format v2; HDFSBacked has v1 alone.
    """
    if checkpoint_format not in (None, 1, 2):
        raise OptionError(f"the checkpoint format is {checkpoint_format!r}, but it must be 1 or 2.")
    if checkpoint_format == 2 and to == "hdfs":
        raise ConversionError(
            "Spark's HDFSBackedStateStoreProvider does not support state checkpoint format 2. Convert to "
            "rocksdb, or leave the format out; nothing was changed."
        )
    return checkpoint_format or (2 if has_ids and to != "hdfs" else 1)


def provider_for(to: str, operators: Sequence[StatefulOperator]) -> str:
    """Return the class of a target's provider, or raise if it cannot hold the state."""
    if to == "statestore":
        return PROVIDER_CLASS
    if to == "rocksdb":
        return _ROCKSDB
    for operator in operators:
        if has_families(operator):
            raise ConversionError(
                f"operator {operator.id} ({operator.name}) keeps several column families in one store, which "
                "Spark's HDFSBackedStateStoreProvider cannot. Convert to rocksdb; nothing was changed."
            )
    return _HDFS
