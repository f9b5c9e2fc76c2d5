"""Operations of a cluster's batches: executors hand commits over, and the driver publishes accepted ones."""

from __future__ import annotations

import contextlib
from unittest.mock import patch

from spark_statestore.errors import StateStoreError
from spark_statestore.store import commit
from spark_statestore.testing.stores import attempt_id
from tests.unit.query.merged_bench import (
    PARTITIONS,
    MergedBench,
    Operation,
    Process,
    Version,
    three_batches,
    versions_to_discard,
)

RETRIED = 1
"""A partition whose task runs twice, or whose version is too large to be handed over."""


def runs_a_task_again(bench: MergedBench) -> None:
    """A task fails, or is slow, and a second attempt on another executor is the one that Spark accepts.

    The next batch's task is on the first executor again, which loads the accepted attempt.
    """
    batch = bench.begin(b"again")
    elsewhere = bench.executors[(RETRIED + 1) % len(bench.executors)].open(RETRIED)
    versions = []
    for p, store in enumerate(bench.stores):
        if p == RETRIED:
            # Handed over as well unless it fails, and not published.
            with contextlib.suppress(StateStoreError, OSError):
                bench.commit(batch, p, store, by=attempt_id())
            elsewhere.load(bench.names[-1][p])
            store = elsewhere
        versions.append(bench.commit(batch, p, store))
    bench.publish(versions)
    bench.finish(batch, versions)
    metadata = bench.stores[RETRIED].load(batch.names[RETRIED])
    versions[RETRIED] = Version(batch.names[RETRIED], metadata.attempt_id, metadata.handle)


def publishes_twice(bench: MergedBench) -> None:
    """The answer of the driver's backend is lost with its connection, and the request is repeated."""
    batch = bench.begin(b"twice")
    versions = [bench.commit(batch, p, store) for p, store in enumerate(bench.stores)]
    bench.publish(versions)
    bench.publish(versions)
    bench.finish(batch, versions)


def writes_a_version_alone(bench: MergedBench) -> None:
    """The metadata of one store is too large for the driver, so that its executor writes it."""
    batch = bench.begin(b"alone")
    bench.alone.add(batch.names[RETRIED])
    versions = []
    for p, store in enumerate(bench.stores):
        with patch.object(commit, "LARGEST_HANDED_OVER", 0 if p == RETRIED else 1 << 20):
            versions.append(bench.commit(batch, p, store))
    assert [version.metadata is None for version in versions] == [p == RETRIED for p in range(PARTITIONS)]
    bench.publish(versions)
    bench.finish(batch, versions)


def loses_an_executor(bench: MergedBench) -> None:
    """An executor is lost after its tasks, before the barrier; another loads the batch and runs the next."""
    batch = bench.begin(b"lost")
    versions = [bench.commit(batch, p, store) for p, store in enumerate(bench.stores)]
    bench.executors[RETRIED] = Process(bench, reports_discards=True)
    bench.publish(versions)
    bench.finish(batch, versions)
    bench.stores = [bench.executors[p % len(bench.executors)].open(p) for p in range(PARTITIONS)]
    bench.versions = None
    bench.batch(b"next")


def reports_discards(bench: MergedBench) -> None:
    """Executors discard versions, and the batch after that carries their reports."""
    bench.clean(len(bench.committed))
    runs_a_task_again(bench)


HAND_OVERS = {
    "task-again": Operation(three_batches, runs_a_task_again),
    "publish-again": Operation(three_batches, publishes_twice),
    "version-alone": Operation(three_batches, writes_a_version_alone),
    "executor-lost": Operation(three_batches, loses_an_executor),
    "reports": Operation(versions_to_discard, reports_discards),
}
