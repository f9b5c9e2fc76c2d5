"""Operator state in real queries: each batch counts once, after kills, failures and restarts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spark_statestore.operator_state.query_operator_state import OPERATOR_STATE_DIR, QueryOperatorState
from tests.spark.programs.operator_state import answer, content, process, start, write_batches

BATCHES = [list(range(first, first + 5)) for first in range(1, 40, 5)]


class Events:
    """A query over files of events, and the operator state that its function keeps.

    `interrupt` is called with each batch in the block, after its state was changed.
    """

    def __init__(self, spark: Any, directory: Path, location: str | None = None) -> None:
        self.spark = spark
        self.input = directory / "input"
        self.location = location or str(directory / "checkpoint")
        self.state = self.opened()
        self.fed = 0
        self.ran: list[int] = []
        self.interrupt: Callable[[int], None] = lambda batch_id: None

    def opened(self) -> QueryOperatorState:
        return QueryOperatorState(self.location, "events")

    def feed(self, count: int) -> None:
        write_batches(self.input, BATCHES[self.fed : self.fed + count], self.fed)
        self.fed += count

    def run(self) -> Any:
        query = start(self.spark, self.input, self.location, self._function)
        try:
            assert query.awaitTermination(120), "the query does not end"
        finally:
            query.stop()
        return query

    def _function(self, batch: Any, batch_id: int) -> None:
        numbers = [row.number for row in batch.collect()]
        self.ran.append(batch_id)
        with self.state.batch(batch_id) as store:
            process(store, numbers)
            if batch_id % 2:
                # Written while the block goes on with a Spark job, as of a sink.
                store.snapshot()
                assert batch.count() == len(numbers)
            self.interrupt(batch_id)

    def check(self) -> None:
        """Compare the stored state with the plain computation."""
        assert content(self.opened().read()) == answer(BATCHES[: self.fed])
        assert self.opened().batches() == list(range(self.fed))


@pytest.fixture
def events(spark: Any, tmp_path: Path) -> Events:
    return Events(spark, tmp_path)


def run_and_fail(events: Events, expected: str) -> str:
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException, match=expected) as raised:
        events.run()
    return str(raised.value)


def test_failed_function_leaves_the_state_of_the_previous_batch(events: Events) -> None:
    def fail(batch_id: int) -> None:
        if events.ran.count(batch_id) <= batch_id:
            raise ZeroDivisionError("this batch fails")

    events.feed(3)
    events.interrupt = fail
    for batch_id in (1, 2, 2):
        run_and_fail(events, "this batch fails")
        assert content(events.opened().read()) == answer(BATCHES[:batch_id])
    events.run()
    events.check()
    assert events.ran == [0, 1, 1, 2, 2, 2]


def test_repeated_batch_starts_from_the_same_operator_state(events: Events) -> None:
    events.feed(3)
    events.run()
    for added in (0, 2):
        newest = Path(events.location, "commits", str(events.fed - 1))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
        events.feed(added)
        events.run()
        events.check()
        # Another driver continues.
        events.state = events.opened()
    assert events.ran == [0, 1, 2, 2, 2, 3, 4]


def test_operator_state_is_in_a_checkpoint_location_with_a_scheme(spark: Any, tmp_path: Path) -> None:
    directory = tmp_path / "with some spaces" / "größe"
    events = Events(spark, tmp_path, f"file:{directory}")
    events.feed(2)
    events.run()
    events.check()
    assert {"commits", "metadata", "offsets", OPERATOR_STATE_DIR} <= {p.name for p in directory.iterdir()}


# The state of another query, or of another batch


def test_operator_state_of_another_query_is_rejected_unchanged(spark: Any, tmp_path: Path) -> None:
    owner, other_query = Events(spark, tmp_path / "owner"), Events(spark, tmp_path / "other")
    for events in (owner, other_query):
        events.feed(2)
    query = owner.run()
    other_query.state = owner.opened()
    message = run_and_fail(other_query, "belongs to the query")
    assert str(query.id) in message
    assert "SessionError" in message
    assert "its own checkpointLocation" in message
    owner.check()
    # With its own state, it continues.
    other_query.state = other_query.opened()
    other_query.run()
    other_query.check()


def test_operator_state_rejects_the_id_of_another_batch(events: Events) -> None:
    events.feed(3)
    events.run()
    before = content(events.opened().read())
    state = events.state

    class Shifted:
        def batch(self, batch_id: int) -> Any:
            return state.batch(batch_id + 1)

    events.feed(1)
    events.state = Shifted()
    assert "SessionError" in run_and_fail(events, "runs batch 3 in this thread, and the state of batch 4")
    assert content(events.opened().read()) == before
    events.state = state
    events.run()
    events.check()


def test_operator_state_opens_any_batch_outside_of_a_query(events: Events) -> None:
    events.feed(3)
    events.run()

    def repair(number: int) -> None:
        with events.opened().batch(2) as store:
            process(store, [number])
        assert content(events.opened().read()) == answer([*BATCHES[:2], [number]])

    repair(100)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(repair, 200).result()


def test_concurrent_queries_have_separate_operator_state(spark: Any, tmp_path: Path) -> None:
    both = [Events(spark, tmp_path / name) for name in ("one", "two")]
    for events in both:
        events.feed(3)
    queries = [start(spark, events.input, events.location, events._function) for events in both]
    for query, events in zip(queries, both, strict=True):
        assert query.awaitTermination(120)
        events.check()
