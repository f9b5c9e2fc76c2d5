"""A query goes on after damage of its state, without a lost batch, if other streams have the same state."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_statestore.query.query_checkpoint import QueryCheckpoint
from spark_statestore.query.verify import verify
from spark_statestore.storage.file_handles import FileStateHandle
from spark_statestore.storage.incremental_handle import ChainEntry
from tests.spark.harness import Provider, Row
from tests.spark.queries import STATE_STORE, Query, configured, unload_all
from tests.support.spark_versions import NEWEST_READABLE_FORMAT

WORDS = pa.schema([("word", pa.string())])
BATCHES = 9


def counts(events: Any) -> Any:
    return events.groupBy("word").count()


def batch(number: int) -> list[dict[str, Any]]:
    """Return the input of a batch: half of 3000 long words, more than a commit writes again as a whole."""
    return [{"word": f"{word:05}" + "w" * 500} for word in range(number % 2, 3000, 2)]


def chain(query: Query, checkpoints_dir: str | None) -> list[ChainEntry]:
    """Return the streams of the newest version of the only store."""
    checkpoint = QueryCheckpoint(str(query.checkpoint), checkpoints_dir=checkpoints_dir)
    (version,) = checkpoint.stores()
    return list(checkpoint.open(version.store).metadata(version.name, version.attempt_id).handle)


def repaired(query: Query) -> int:
    """Return the metric over the batches of the last run."""
    operators = [operator for progress in query.progress for operator in progress["stateOperators"]]
    return sum(operator["customMetrics"]["streamsRepaired"] for operator in operators)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checkpoint_format", "damage", "remote"), [(1, "missing", False), (2, "flipped", True)]
)
def test_query_goes_on_after_damage_of_its_newest_base(
    spark: Any, tmp_path: Path, checkpoint_format: int, damage: str, remote: bool
) -> None:
    # By fsspec, so that the backend sends the streams, and finds the damage while it does.
    elsewhere = f"local://{tmp_path}/elsewhere" if remote else None
    confs = {STATE_STORE + "backend.checkpointsDir": elsewhere} if elsewhere else {}
    confs |= {
        "spark.sql.shuffle.partitions": "1",
        STATE_STORE + "backend.compression": "none",
        STATE_STORE + "minDeltasForSnapshot": "10",
        # A local copy would stand for the damaged base.
        STATE_STORE + "backend.localRecovery": "off",
    }
    query = Query(spark, tmp_path, counts, "update", WORDS, checkpoint_format=checkpoint_format, confs=confs)
    query.feed(*(batch(number) for number in range(BATCHES)))
    assert len(query.run()) == BATCHES
    base = chain(query, elsewhere)[0]
    stream = base.state.delegate_state_handle
    assert base.full
    assert isinstance(stream, FileStateHandle)
    # An uploaded base, since the first batch wrote the other one.
    assert 1 < base.version < BATCHES
    unload_all(spark)
    path = Path("/" + stream.path.lstrip("/"))
    if damage == "missing":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    report = verify(str(query.checkpoint), checkpoints_dir=elsewhere)
    assert (report.ok, [problem.covered for problem in report.problems]) == (True, [True])
    query.feed(batch(BATCHES))
    out = query.run()
    expected = Counter(row["word"] for number in range(BATCHES + 1) for row in batch(number))
    newest = {row["word"] for row in batch(BATCHES)}
    assert out == [(BATCHES, Counter(f"Row(word={word!r}, count={expected[word]})" for word in newest))]
    assert repaired(query) == 1
    # The healed batch has written everything: nothing needs the damaged stream any more.
    assert [(entry.full, entry.version) for entry in chain(query, elsewhere)] == [(True, BATCHES + 1)]
    assert verify(str(query.checkpoint), checkpoints_dir=elsewhere).problems == ()
    unload_all(spark)
    query.feed(batch(BATCHES + 1))
    assert [number for number, _ in query.run()] == [BATCHES + 1]
    assert repaired(query) == 0
    expected.update(row["word"] for row in batch(BATCHES + 1))
    if checkpoint_format <= NEWEST_READABLE_FORMAT:
        with configured(spark, confs):
            state = query.state()
        assert state == Counter(
            f"0 default Row(key=Row(word={word!r}), value=Row(count={count}), partition_id=0)"
            for word, count in expected.items()
        )


def test_damage_is_repaired_from_memory_while_the_query_runs(spark: Any, tmp_path: Path) -> None:
    confs = {
        "minDeltasForSnapshot": "100",
        "backend__fileStateThreshold": "0",
        "backend__scrubIntervalSeconds": "1",
    }
    provider = Provider(spark, f"file:{tmp_path}", **confs)
    expected = {("fill", number): (number, "x" * 2_000) for number in range(50)}

    def run(version: int, rows: dict[Row, Row]) -> dict[str, int]:
        store = provider.open(version)
        for key, value in rows.items():
            store.put(key, value)
        assert store.commit() == version + 1
        expected.update(rows)
        return store.metrics

    run(0, dict(expected))
    for version in range(1, 4):
        run(version, {("a", version): (version, "s")})
    # No other stream has these changes.
    (newest,) = (tmp_path / "state/0/0/shared").glob("4-*")
    newest.unlink()
    version, metrics = 3, {"streamsRepaired": 0}
    until = time.monotonic() + 60
    while not metrics["streamsRepaired"] and time.monotonic() < until:
        time.sleep(0.2)
        version += 1
        metrics = run(version, {("b", version): (version, "t")})
    assert (metrics["streamsRepaired"], metrics["checkpointFullSnapshots"]) == (1, 1)
    provider.close()
    cold = Provider(spark, f"file:{tmp_path}", **confs).open_read(version + 1)
    assert dict(cold.rows()) == expected
