"""Operator state in Python data sources: a sink and a source that are exact after kills and failures."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from spark_statestore.operator_state import QueryOperatorState
from tests.spark.programs.operator_state import RATED, answer, content, write_batches
from tests.spark.programs.operator_state_sources import AT_ONCE, POSITIONS, TAKEN, Sink, Source

BATCHES = [list(range(first, first + 4)) for first in range(1, 40, 4)]


@pytest.fixture(scope="module")
def session(spark: Any) -> Any:
    spark.dataSource.register(Sink)
    spark.dataSource.register(Source)
    return spark


@pytest.fixture
def fail(tmp_path: Path) -> Callable[[str, int, str], None]:
    """Return a function that requests one failure of a data source."""
    directory = tmp_path / "faults"
    directory.mkdir()

    def ask(point: str, number: int, how: str) -> None:
        (directory / f"{point} {number}").write_text(how)

    return ask


def options(directory: Path) -> dict[str, str]:
    return {"checkpointLocation": str(directory / "checkpoint"), "faults": str(directory / "faults")}


def write_to_sink(session: Any, directory: Path) -> Any:
    events = session.readStream.schema("number long").option("maxFilesPerTrigger", 1)
    writer = events.csv(str(directory / "input")).writeStream.format("operator-state-sink")
    return writer.options(**options(directory)).trigger(availableNow=True).start()


def read_from_source(session: Any, directory: Path, lines: dict[int, list[str]]) -> Any:
    source = session.readStream.format("operator-state-source").options(**options(directory))

    def keep(batch: Any, batch_id: int) -> None:
        lines[batch_id] = [row.line for row in batch.collect()]

    writer = source.load(str(directory / "input")).writeStream.foreachBatch(keep)
    return writer.option("checkpointLocation", str(directory / "checkpoint")).start()


def finish(start: Callable[[], Any], failures: int = 0) -> None:
    """Run a query to the end of its input; it fails and restarts a number of times."""
    from pyspark.errors import StreamingQueryException

    for _ in range(failures):
        query = start()
        with pytest.raises(StreamingQueryException):
            query.processAllAvailable()
        query.stop()
    query = start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()


@pytest.mark.slow
def test_sink_is_exact_if_commits_fail(
    session: Any, tmp_path: Path, fail: Callable[[str, int, str], None]
) -> None:
    write_batches(tmp_path / "input", BATCHES[:4])
    fail("in the block", 1, "raise")
    fail("after the block", 2, "kill")
    finish(lambda: write_to_sink(session, tmp_path), failures=2)
    assert not list((tmp_path / "faults").iterdir())
    state = QueryOperatorState(str(tmp_path / "checkpoint"), "sink")
    assert state.batches() == list(range(4))
    for batch_id in 1, 2, 3:
        assert content(state.read(batch_id)) == answer(BATCHES[: batch_id + 1])


def forget_batch(directory: Path, batch_id: int, *, planned: bool) -> None:
    """Remove the newest batch from Spark's logs, as if the driver had died before logging it."""
    for log in ("commits",) if planned else ("commits", "offsets"):
        path = directory / "checkpoint" / log / str(batch_id)
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@pytest.mark.slow
def test_source_returns_each_line_once_after_failures(
    session: Any, tmp_path: Path, fail: Callable[[str, int, str], None]
) -> None:
    source = tmp_path / "input"
    source.mkdir()
    lines: dict[int, list[str]] = {}
    expected: list[str] = []
    state = QueryOperatorState(str(tmp_path / "checkpoint"), "source")

    def grow(count: int) -> None:
        for name in "ab":
            with (source / name).open("a") as file:
                added = [f"{name}{len(expected) + number}" for number in range(count)]
                file.writelines(line + os.linesep for line in added)
                expected.extend(added)

    def check() -> None:
        assert sorted(line for number in sorted(lines) for line in lines[number]) == sorted(expected)
        # Offset n is the end of batch n - 1.
        for number in state.batches():
            store, batches = state.read(number), [lines[batch] for batch in range(number)]
            assert store.get_list_state(TAKEN).get() == [len(batch) for batch in batches]
            assert dict(store.get_broadcast_state(POSITIONS).items()) == {
                name: count for name in "ab" if (count := sum(line[0] == name for b in batches for line in b))
            }
        assert state.batches() == list(range(1, len(lines) + 1))

    def run(failures: int = 0) -> None:
        finish(lambda: read_from_source(session, tmp_path, lines), failures)
        check()

    grow(AT_ONCE)
    fail("in the block", 1, "kill")
    fail("after the block", 2, "raise")
    run(failures=2)
    # The driver dies after it logged the offset, and so reads the same lines, although there are more by now.
    forget_batch(tmp_path, len(lines) - 1, planned=True)
    grow(1)
    run()
    # It dies before that, so that the lines of the last batch are planned again.
    forget_batch(tmp_path, len(lines) - 1, planned=False)
    grow(1)
    run()


def test_shipped_operator_state_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = QueryOperatorState("checkpoint", "events", num_retained=1, fsync=True)
    with state.batch(0) as store:
        store.get_list_state(TAKEN).add(1)
        data = cloudpickle.dumps(state)
    monkeypatch.chdir("/")
    shipped = pickle.loads(data)
    assert str(shipped) == str(state)
    with shipped.batch(1) as store:
        assert store.get_list_state(TAKEN).get() == [1]
    with shipped.batch(2):
        pass
    assert state.batches() == [1, 2]


def test_descriptors_are_pickled_with_a_data_source() -> None:
    for descriptor in POSITIONS, TAKEN, RATED:
        shipped = pickle.loads(cloudpickle.dumps(descriptor))
        assert repr(shipped) == repr(descriptor)
