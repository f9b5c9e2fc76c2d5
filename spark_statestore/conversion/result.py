"""The result of a conversion."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConvertedState:
    """One column family of one store, equal on both sides.

    Attributes
    ----------
    operator, operator_name
        The stateful operator.
    store, column_family
        The state; both are ``default`` for most operators.
    rows
        Number of keys.
    values
        Number of values, more than keys where a key may have several.
    bytes
        Size of keys and values in memory.
    checksum
        Checksum of all rows, the same on both sides, in hexadecimal.
    """

    operator: int
    operator_name: str
    store: str
    column_family: str
    rows: int
    values: int
    bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Conversion:
    """A conversion that is complete, or was only planned.

    Attributes
    ----------
    source, target
        The checkpoint locations.
    source_provider, provider
        Classes of the state store providers.
    batch
        The batch after which the query resumes from the target.
    watermark_ms
        Watermark of the next batch, in milliseconds since 1970; 0 if there is none.
    checkpoint_format
        Spark's format of state checkpoints, 1 or 2.
    partitions
        Number of partitions of each operator in the target.
    states
        What was converted and compared; none for a plan.
    source_bytes
        Size of the files that hold the state of the batch, if known before a conversion.
    seconds
        Duration; 0 for a plan.
    dry_run
        True for a plan.
    """

    source: str
    target: str
    source_provider: str
    provider: str
    batch: int
    watermark_ms: int
    checkpoint_format: int
    partitions: dict[int, int]
    states: tuple[ConvertedState, ...] = ()
    source_bytes: int | None = None
    seconds: float = 0.0
    dry_run: bool = False

    @property
    def rows(self) -> int:
        """Number of values in all states."""
        return sum(state.values for state in self.states)

    @property
    def bytes(self) -> int:
        """Size of all rows in memory."""
        return sum(state.bytes for state in self.states)
