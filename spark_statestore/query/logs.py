"""Entries of Spark's offset log and commit log.

Both are text: a line with the log's version, a line of JSON, and in the offset log a line for each source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from spark_statestore.errors import CorruptCheckpointError, restore_from_backup
from spark_statestore.formats.metadata import parse_json

SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
"""The setting that fixes a query's number of state partitions; the offset log has its value."""

_VERSION = re.compile(r"v[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    """An entry of the offset log: the input of a batch, written before it runs.

    Attributes
    ----------
    version
        The log's version, such as ``v1``.
    metadata
        Watermark, time and settings of the batch, as Spark's JSON has them.
    sources
        A line for each source: the offset at which the batch ends, as the source writes it.
    """

    version: str
    metadata: Mapping[str, Any]
    sources: tuple[str, ...]

    @classmethod
    def decode(cls, data: bytes, where: str) -> OffsetEntry:
        """Decode an entry."""
        version, metadata, sources = _decode(data, where)
        return cls(version, metadata, sources)

    def encode(self) -> bytes:
        """Counterpart of `decode`."""
        return _encode(self.version, self.metadata, self.sources)

    @property
    def conf(self) -> Mapping[str, str]:
        """Settings that Spark fixes when a query first runs."""
        settings: Mapping[str, str] = self.metadata.get("conf", {})
        return settings

    @property
    def shuffle_partitions(self) -> int | None:
        """Number of shuffle partitions; None if the entry does not have it."""
        value = self.conf.get(SHUFFLE_PARTITIONS)
        return None if value is None else int(value)

    @property
    def watermark_ms(self) -> int:
        """Watermark of the batch in milliseconds since 1970; 0 if there is none."""
        return int(self.metadata.get("batchWatermarkMs", 0))

    def with_conf(self, name: str, value: str) -> OffsetEntry:
        """Return the entry with another value of a setting."""
        return replace(self, metadata={**self.metadata, "conf": {**self.conf, name: value}})

    def with_watermark(self, milliseconds: int) -> OffsetEntry:
        """Return the entry with another watermark."""
        return replace(self, metadata={**self.metadata, "batchWatermarkMs": milliseconds})


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """An entry of the commit log: a batch is committed.

    Attributes
    ----------
    version
        The log's version: ``v1``, or ``v2`` where it names the attempts at the state.
    metadata
        The next batch's watermark and the attempts, as Spark's JSON has them.
    """

    version: str
    metadata: Mapping[str, Any]

    @classmethod
    def decode(cls, data: bytes, where: str) -> CommitEntry:
        """Decode an entry."""
        version, metadata, _ = _decode(data, where)
        return cls(version, metadata)

    def encode(self) -> bytes:
        """Counterpart of `decode`."""
        return _encode(self.version, self.metadata, ())

    @property
    def state_ids(self) -> Mapping[int, Sequence[Sequence[str]]] | None:
        """Checkpoint ids of each operator, by partition and store; None in checkpoint format v1."""
        ids = self.metadata.get("stateUniqueIds")
        # Spark writes an empty object for a query that has no state yet.
        return {int(operator): partitions for operator, partitions in ids.items()} if ids else None

    def with_watermark(self, milliseconds: int) -> CommitEntry:
        """Return the entry with another watermark of the next batch."""
        return replace(self, metadata={**self.metadata, "nextBatchWatermarkMs": milliseconds})

    def with_state_ids(self, ids: Mapping[int, Sequence[Sequence[str]]]) -> CommitEntry:
        """Return the entry with other checkpoint ids, in checkpoint format v2."""
        ids_by_operator = {
            str(operator): [list(stores) for stores in partitions] for operator, partitions in ids.items()
        }
        version = "v2" if self.version == "v1" else self.version
        return replace(self, version=version, metadata={**self.metadata, "stateUniqueIds": ids_by_operator})

    def without_state_ids(self) -> CommitEntry:
        """Return the entry in checkpoint format v1."""
        metadata = {name: value for name, value in self.metadata.items() if name != "stateUniqueIds"}
        return replace(self, version="v1", metadata=metadata)


def _decode(data: bytes, where: str) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    try:
        version, metadata, *sources = data.decode().split("\n")
        if not _VERSION.fullmatch(version):
            raise ValueError(f"the first line is {version!r}, which is not a log version")
        node = parse_json(metadata)
        if not isinstance(node, dict):
            raise TypeError("the second line is not a JSON object")
    except (TypeError, ValueError) as error:
        raise CorruptCheckpointError(
            f"{where} is not an entry of one of Spark's logs: {error}. " + restore_from_backup()
        ) from error
    return version, node, tuple(sources)


def _encode(version: str, metadata: Mapping[str, Any], lines: Sequence[str]) -> bytes:
    return "\n".join([version, json.dumps(metadata, separators=(",", ":")), *lines]).encode()
