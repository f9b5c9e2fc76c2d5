"""The function `convert`."""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_statestore.conversion.claim import claim, remove_interrupted
from spark_statestore.conversion.job import Job, Progress, require_classes
from spark_statestore.conversion.plan import Source, side
from spark_statestore.conversion.providers import (
    Target,
    is_own,
    provider_for,
    require_known,
    require_target,
    target_format,
)
from spark_statestore.conversion.result import Conversion, ConvertedState
from spark_statestore.conversion.space import require_space, state_bytes
from spark_statestore.errors import ConversionError, QueryRunningError
from spark_statestore.files import join, open_file_system
from spark_statestore.options import PROVIDER_KEY
from spark_statestore.query.running import ActivityCheck
from spark_statestore.savepoints.copy import CheckpointCopy
from spark_statestore.savepoints.new_location import SCRATCH, new_location, require_empty
from spark_statestore.storage import (
    CheckpointStorageLocationReference,
    decode_path_from_reference,
    encode_path_as_reference,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def convert(
    spark: SparkSession,
    source: str,
    target: str,
    to: Target = "statestore",
    *,
    batch: int | None = None,
    partitions: int | None = None,
    stopped: bool = False,
    dry_run: bool = False,
    checkpoints_dir: str | None = None,
    checkpoint_format: int | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Copy the checkpoint of a stopped query to a new location, with its state in another state store.

    The unchanged query resumes from the target after the batch. Everything but the state and the name of its
    provider is the same, the query's id included. The source is only read.

    All rows of both sides are read after they were written, and compared, before the file is written that
    makes the target a checkpoint. A conversion that failed leaves nothing; one that was killed is begun anew
    by the next call.

    Parameters
    ----------
    spark
        A session that `configure` made, with the jar of the source's state store. The conversion runs as its
        jobs, with a task for each store and partition.
    source
        The query's ``checkpointLocation``.
    target
        URL of the new checkpoint location, which must be empty.
    to
        ``statestore``, Spark's ``rocksdb``, or Spark's ``hdfs`` (HDFSBackedStateStoreProvider).
    batch
        The last batch of the target, by default the newest one, which must be committed.
    partitions
        Number of state partitions of every operator, by default unchanged. Aggregations without keys and
        limits keep one.
    stopped
        The query is stopped: do not check its logs for activity before the conversion.
    dry_run
        Check everything that can be checked without reading state, and change nothing.
    checkpoints_dir
        The option ``checkpointsDir`` of the query, if its state is in this store and the option was set.
    checkpoint_format
        1 or 2 for a target in this format of Spark's checkpoints, whatever the source has; by default the
        source's, and 1 for ``hdfs``, which has no other.
    progress
        Called about twice a second from another thread, see `spark_statestore.conversion.job.Progress`.

    Raises
    ------
    ConversionError
        If the target's store cannot hold the state, the newest batch is not committed, or the two sides
        differ.
    QueryRunningError
        If the query seems to run.
    CheckpointNotFoundError
        If the checkpoint or the batch does not exist.
    CheckpointExistsError
        If the target is not empty.
    RescaleError
        If the state cannot be redistributed.
    SessionError
        If the session lacks the jar.
    CheckpointError, StorageError
        If a file cannot be read or written.
    OptionError
        If `to` is none of the three, or `checkpoint_format` is neither 1 nor 2.
    ValueError
        If `partitions` is less than one.

    Examples
    --------
    >>> spark_statestore.convert(spark, "/checkpoints/orders", "/checkpoints/orders-2")  # doctest: +SKIP
    """
    require_target(to)
    if partitions is not None and partitions < 1:
        raise ValueError(f"the number of partitions is {partitions}, but it must be at least 1")
    begun = time.monotonic()
    origin = Source(source, batch, checkpoints_dir)
    activity = ActivityCheck(origin.checkpoint)
    require_known(origin.operators)
    origin.require_encoding()
    target_checkpoint_format = target_format(to, checkpoint_format, has_ids=origin.ids is not None)
    with_ids = target_checkpoint_format == 2
    provider = provider_for(to, origin.operators)
    if is_own(origin.provider) and is_own(provider):
        raise ConversionError(
            f"the state of {origin.checkpoint.url} is in the state store {origin.provider} already. "
            "spark-statestore rescale changes its number of partitions, and spark-statestore clone its "
            "checkpoint format; nothing was changed."
        )
    if origin.provider == provider and partitions is None:
        raise ConversionError(
            f"the state of {origin.checkpoint.url} is in the state store {origin.provider} already. Pass "
            "partitions (--partitions) to change its number of partitions; nothing was changed."
        )
    require_classes(spark, origin.provider, provider)
    counts = {operator.id: origin.partitions(operator) for operator in origin.operators}
    size = state_bytes(origin)
    require_space(target, size)
    activity.require_stopped(stopped=stopped)
    plan: dict[str, Any] = {
        "source": origin.checkpoint.url,
        "target": target,
        "source_provider": origin.provider,
        "provider": provider,
        "batch": origin.batch,
        "watermark_ms": int(origin.commit.metadata.get("nextBatchWatermarkMs", 0)),
        "checkpoint_format": target_checkpoint_format,
        "source_bytes": size,
    }
    if dry_run:
        _require_empty(target)
        if partitions is not None:
            # Operators without keys keep one.
            counts |= {
                operator.id: partitions
                for operator in origin.operators
                if not operator.may_be_single or counts[operator.id] > 1
            }
        return Conversion(**plan, partitions=counts, dry_run=True)
    remove_interrupted(target)
    with _reserved(spark, origin, target) as location:
        run = _Run(spark, origin, location, provider, counts, with_ids, progress)
        target_state = run.write() if partitions is None else run.write_rescaled(partitions)
        states = run.compare(target_state)
        if added := activity.added():
            raise QueryRunningError(
                f"the query of {origin.checkpoint.url} runs: it has written {', '.join(added)} during the "
                "conversion, which lacks them. Stop it, then try again; no checkpoint was made."
            )
        target_state.copy.write_logs()
        target_state.copy.publish(reserved=True)
    return Conversion(**plan, partitions=target_state.counts, states=states, seconds=time.monotonic() - begun)


_Ids = Mapping[int, Sequence[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class _TargetState:
    """The files of a checkpoint, without Spark's logs and the last one, which `copy` publishes.

    There are checkpoint ids of the stores in format 2, and the number of partitions of each operator.
    """

    copy: CheckpointCopy
    ids: _Ids | None
    counts: dict[int, int]


class _Run:
    """The steps of one conversion, between the reservation of the target and its last file."""

    def __init__(
        self,
        spark: SparkSession,
        source: Source,
        target: CheckpointStorageLocationReference,
        provider: str,
        counts: dict[int, int],
        with_ids: bool,
        progress: Progress | None,
    ) -> None:
        self._spark = spark
        self._source = source
        self._target = target
        self._provider = provider
        self._counts = counts
        self._with_ids = with_ids
        self._progress = progress

    def write(self) -> _TargetState:
        """Write all files but the logs and the last, in the same partitions."""
        return self._convert(self._source, self._target, self._provider, self._counts)

    def write_rescaled(self, partitions: int) -> _TargetState:
        """Write all files but the logs and the last, by way of this store.

        This store knows Spark's partitioning.
        """
        own = self._source
        own_provider = provider_for("statestore", own.operators)
        scratch = join(decode_path_from_reference(self._target), SCRATCH)
        if not is_own(own.provider):
            converted = encode_path_as_reference(join(scratch, "converted"))
            own = self._as_source(converted, self._convert(own, converted, own_provider, self._counts))
        is_last = is_own(self._provider)
        place = self._target if is_last else encode_path_as_reference(join(scratch, "rescaled"))
        copy = CheckpointCopy(
            own.checkpoint,
            own.batch,
            place,
            query_id=own.query_id,
            entry=own.commit,
            partitions=partitions,
            fsync=is_last,
            conf={PROVIDER_KEY: own_provider},
            with_ids=self._with_ids,
        )
        copy.write()
        target_state = _TargetState(copy, copy.state_ids, dict(copy.partitions_written))
        if not is_last:
            rescaled = self._as_source(place, target_state)
            target_state = self._convert(rescaled, self._target, self._provider, target_state.counts)
        files, directory = open_file_system(scratch)
        files.delete_directory(directory, recursive=True)
        return target_state

    def compare(self, target_state: _TargetState) -> tuple[ConvertedState, ...]:
        """Read all rows of both sides, raise if they differ, and return what they have."""
        source = self._source
        sides = {
            "source": _origin(source, self._counts),
            "target": side(
                source,
                self._target,
                self._provider,
                target_state.counts,
                target_state.ids,
                with_ids=self._with_ids,
            ),
        }
        job = Job(self._spark, source.batch + 1, sides, self._progress)
        same_partitions = target_state.counts == self._counts
        digests = job.digests("source"), job.digests("target")
        here, there = (_added_up(copies, by_partition=same_partitions) for copies in digests)
        for where in sorted(here.keys() | there.keys()):
            if here[where] != there[where]:
                operator, store, family, partition = where
                raise ConversionError(
                    f"operator {operator}, store {store}, column family "
                    f"{family}{f', partition {partition}' if same_partitions else ''}: the source has "
                    f"{here[where]}, but what was written is {there[where]}. No checkpoint was made, and the "
                    "source is unchanged. Please report this error."
                )
        names = {operator.id: operator.name for operator in source.operators}
        return tuple(
            ConvertedState(
                operator,
                names[operator],
                store,
                family,
                total.keys,
                total.values,
                total.bytes,
                total.checksum,
            )
            for (operator, store, family, _), total in sorted(
                _added_up(digests[0], by_partition=False).items()
            )
        )

    def _convert(
        self,
        source: Source,
        target: CheckpointStorageLocationReference,
        provider: str,
        counts: dict[int, int],
    ) -> _TargetState:
        """Copy all stores, and Spark's files except the logs and the last."""
        sides = {
            "source": _origin(source, counts),
            "target": side(source, target, provider, counts, None, with_ids=self._with_ids),
        }
        ids = Job(self._spark, source.batch + 1, sides, self._progress).copy()
        copy = CheckpointCopy(
            source.checkpoint,
            source.batch,
            target,
            query_id=source.query_id,
            entry=source.commit,
            fsync=True,
            conf={PROVIDER_KEY: provider},
        )
        commit = source.commit.without_state_ids() if ids is None else source.commit.with_state_ids(ids)
        copy.write(state=False, commit=commit)
        return _TargetState(copy, ids, counts)

    def _as_source(self, location: CheckpointStorageLocationReference, state: _TargetState) -> Source:
        """Return an intermediate location as the source of the next step."""
        state.copy.write_logs()
        url = decode_path_from_reference(location)
        return Source(url, self._source.batch, None, query_id=self._source.query_id)


def _origin(source: Source, counts: Mapping[int, int]) -> dict[str, Any]:
    location = encode_path_as_reference(source.url)
    return side(source, location, source.provider, counts, source.ids, with_ids=source.ids is not None)


@dataclass(slots=True)
class _Total:
    """Count and checksum of rows."""

    keys: int = 0
    values: int = 0
    bytes: int = 0
    sum: int = 0
    ordered: tuple[str, ...] = ()

    @property
    def checksum(self) -> str:
        return f"{self.sum:016x}"

    def add(self, digest: Mapping[str, Any], *, with_order: bool) -> None:
        self.keys += digest["keys"]
        self.values += digest["values"]
        self.bytes += digest["bytes"]
        self.sum = (self.sum + int(digest["sum"], 16)) % (1 << 64)
        if with_order and digest["values"]:
            self.ordered += (digest["ordered"],)

    def __str__(self) -> str:
        order = f", in the order {self.ordered[0]}" if self.ordered and self.ordered[0] else ""
        return (
            f"{self.keys} keys with {self.values} values of {self.bytes} bytes, checksum {self.checksum}"
            f"{order}"
        )


_Where = tuple[int, str, str, int]


def _added_up(digests: Sequence[Mapping[str, Any]], *, by_partition: bool) -> defaultdict[_Where, _Total]:
    """Return digests by operator, store, column family and partition.

    Without `by_partition`, those of all partitions are added up, and the partition is -1.
    """
    totals: defaultdict[_Where, _Total] = defaultdict(_Total)
    for digest in digests:
        where = (
            digest["operator"],
            digest["store"],
            digest["family"],
            digest["partition"] if by_partition else -1,
        )
        totals[where].add(digest, with_order=by_partition)
    return totals


@contextlib.contextmanager
def _reserved(
    spark: SparkSession, source: Source, target: str
) -> Iterator[CheckpointStorageLocationReference]:
    jvm: Any = spark._jvm
    pids = [os.getpid(), int(jvm.java.lang.ProcessHandle.current().pid())]
    with new_location(source.checkpoint, target, by=claim(pids)) as location:
        yield location


def _require_empty(target: str) -> None:
    files, root = open_file_system(target)
    require_empty(files, root.rstrip("/"))
