"""The minor versions of Spark that can continue a query."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from spark_statestore._version import SUPPORTED_SPARK
from spark_statestore.formats.metadata import parse_json
from spark_statestore.options import PROVIDER_KEY
from spark_statestore.query.logs import CommitEntry, OffsetEntry
from spark_statestore.query.operators import StatefulOperator
from spark_statestore.query.query_checkpoint import OFFSETS, QueryCheckpoint
from spark_statestore.store.metadata import ColumnFamily

_OWN_PACKAGE: Final = "org.apache.spark.sql.statestore."

_TIMESTAMP_KEYS: Final = ("timestampPrefix", "timestampPostfix")
_KEYS_AS_WRITTEN: Final = "spark.sql.dropDuplicates.deterministicKeyOrder.enabled"

# Scala's sets keep the order of insertion up to this size.
_ORDERED_SET: Final = 4

_Limit = tuple[Collection[str], str]


def obstacles_by_spark(checkpoint: QueryCheckpoint) -> Mapping[str, tuple[str, ...]]:
    """Return why each supported minor version of Spark cannot continue a query; no reason if it can.

    The reasons follow from the newest entries of Spark's logs, which fix the settings of the query, and from
    the operators and column families of the newest committed batch.

    Raises
    ------
    CheckpointError
        If a file is missing or damaged.
    """
    limits = list(_limits(checkpoint))
    return {
        spark: tuple(reason for supported, reason in limits if spark not in supported)
        for spark in SUPPORTED_SPARK
    }


def _limits(checkpoint: QueryCheckpoint) -> Iterator[_Limit]:
    """Yield what limits the query, with the minor versions that it leaves."""
    batch = checkpoint.newest_batch()
    offsets = checkpoint.offsets(max(checkpoint.logged(OFFSETS)))
    provider = offsets.conf.get(PROVIDER_KEY)
    if provider is not None and not provider.startswith(_OWN_PACKAGE):
        yield (), f"its state is in the state store {provider}: a query keeps the provider of its first batch"
        return
    yield from _limits_of_logs(offsets, checkpoint.commit(batch))
    families = _column_families(checkpoint, batch)
    for operator in checkpoint.operators(batch):
        yield from _limits_of(operator, families[operator.id], offsets)


def _limits_of_logs(offsets: OffsetEntry, commit: CommitEntry) -> Iterator[_Limit]:
    if offsets.version != "v1":
        yield _since("4.2"), f"its offset log has version {offsets.version}, with names of sources"
    if commit.version not in ("v1", "v2"):
        yield _since("4.2"), f"its commit log has version {commit.version}"


def _column_families(checkpoint: QueryCheckpoint, batch: int) -> Mapping[int, list[ColumnFamily]]:
    """Return the column families of each operator, from its first partition."""
    families: dict[int, list[ColumnFamily]] = {}
    for version in checkpoint.stores(batch):
        if version.store.partition == 0:
            metadata = checkpoint.open(version.store).metadata(version.name, version.attempt_id)
            families.setdefault(version.store.operator, []).extend(metadata.column_families)
    return families


def _limits_of(
    operator: StatefulOperator, families: Collection[ColumnFamily], offsets: OffsetEntry
) -> Iterator[_Limit]:
    subject = f"operator {operator.id} ({operator.name})"
    ordered_by_time = any(family.key_encoder in _TIMESTAMP_KEYS for family in families)
    if operator.is_join:
        # In formats 3 and 4 a join has one store, with column families.
        if ordered_by_time:
            yield _since("4.3"), f"{subject} is a join of state format 4, which Spark has since 4.3"
        elif len(operator.stores) == 1:
            yield _since("4.1"), f"{subject} is a join of state format 3, which Spark has since 4.1"
    elif ordered_by_time:
        yield _since("4.2"), f"{subject} has keys ordered by a timestamp, which Spark has since 4.2"
    if operator.name in ("dedupe", "dedupeWithinWatermark") and offsets.conf.get(_KEYS_AS_WRITTEN) == "true":
        columns = max(len(parse_json(family.key_schema)["fields"]) for family in families)
        if columns > _ORDERED_SET:
            reason = (
                f"{subject} has {columns} key columns in the order of the query, but Spark before 4.3 orders "
                f"more than {_ORDERED_SET} by their hashes, and would not find the rows"
            )
            yield _since("4.3"), reason
    if operator.name == "transformWithStateInPySparkExec":
        yield _since("4.1"), f"{subject} is Python's transformWithState by rows, which Spark has since 4.1"


def _since(minor: str) -> tuple[str, ...]:
    return SUPPORTED_SPARK[SUPPORTED_SPARK.index(minor) :]
