"""Queries whose checkpoint was truncated, moved, or made by another provider."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.spark import events
from tests.spark.golden import Recordings
from tests.spark.queries import OURS, SPARKS, Output, Query, run_with_restarts, unload_all
from tests.support.spark_versions import NEWEST_READABLE_FORMAT

pytestmark = pytest.mark.slow

both_formats = pytest.mark.parametrize("checkpoint_format", [1, 2])


def counts(stream: Any) -> Any:
    from pyspark.sql import functions as F

    return stream.groupBy("id").agg(F.count("*").alias("n"), F.sum("amount").alias("amount"))


def sessions(stream: Any) -> Any:
    from pyspark.sql import functions as F

    late = stream.withWatermark("ts", "15 minutes")
    return late.groupBy(F.session_window("ts", "2 minutes"), "k").agg(F.count("*").alias("n"))


QUERIES = {"counts": (counts, "update"), "sessions": (sessions, "append")}


def make(
    spark: Any, directory: Path, name: str = "counts", provider: str = OURS, checkpoint_format: int = 1
) -> Query:
    build, mode = QUERIES[name]
    return Query(
        spark, directory, build, mode, events.SCHEMA, provider=provider, checkpoint_format=checkpoint_format
    )


def files(root: Path) -> dict[str, bytes | None]:
    """Return everything below a directory with its bytes, None for directories."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in root.rglob("*")
    }


# A repeated batch


def runs_with_lost_commits(query: Query) -> list[Output]:
    made = events.batches(5)
    outputs = run_with_restarts(query, [made[:3]])
    query.forget_newest_commit()
    outputs += run_with_restarts(query, [made[3:4]])
    # The same batch twice, without new input after it.
    for _ in range(2):
        query.forget_newest_commit()
        outputs.append(query.run())
    return [*outputs, *run_with_restarts(query, [made[4:]])]


@pytest.mark.spark
@both_formats
@pytest.mark.parametrize("name", QUERIES)
def test_repeated_batch_has_the_same_result(
    spark: Any, tmp_path: Path, recordings: Recordings, name: str, checkpoint_format: int
) -> None:
    readable = checkpoint_format <= NEWEST_READABLE_FORMAT

    def live(provider: str, checkpoint_format: int) -> tuple[list[Output], Counter[str]]:
        query = make(spark, tmp_path / provider, name, provider, checkpoint_format)
        return runs_with_lost_commits(query), query.state() if readable else Counter()

    ours = live(OURS, checkpoint_format)
    outputs = ours[0]
    assert outputs[2] == outputs[3]
    assert outputs[2], "the batch was run again"
    recordings.compare(name + " without state" * (not readable), ours, lambda: live(SPARKS, 1))


# A checkpoint at another place


@both_formats
def test_query_resumes_from_a_copied_checkpoint(
    spark: Any, tmp_path: Path, recordings: Recordings, checkpoint_format: int
) -> None:
    made = events.batches(4)
    readable = checkpoint_format <= NEWEST_READABLE_FORMAT

    def on_sparks_store() -> tuple[list[Output], Counter[str]]:
        stays = make(spark, tmp_path / "stays", provider=SPARKS)
        outputs = run_with_restarts(stays, [made[:3], made[3:]])
        return outputs, stays.state() if readable else Counter()

    moves = make(spark, tmp_path / "moves", checkpoint_format=checkpoint_format)
    outputs = run_with_restarts(moves, [made[:3]])
    copy = tmp_path / "elsewhere" / "a copy"
    # Its maintenance may still write.
    unload_all(spark)
    shutil.copytree(moves.checkpoint, copy)
    assert any("/shared/" in name for name in files(copy / "state")), "some state is in files of its own"
    shutil.rmtree(moves.checkpoint)
    moves.checkpoint = copy
    outputs += run_with_restarts(moves, [made[3:]])

    # Spark's reader of state cannot handle the blank in the name.
    moves.checkpoint = tmp_path / "elsewhere" / "copy"
    shutil.copytree(copy, moves.checkpoint)
    name = "copied checkpoint" + " without state" * (not readable)
    recordings.compare(name, (outputs, moves.state() if readable else Counter()), on_sparks_store)
    assert not (tmp_path / "moves" / "checkpoint").exists()


# A checkpoint of another provider


def rename_provider(query: Query, old: str, new: str) -> None:
    """Edit the offset log so that the query asks for another provider, which Spark itself never does."""
    edited = 0
    for path in (query.checkpoint / "offsets").iterdir():
        if path.name.isdigit():
            text = path.read_text()
            edited += old in text
            path.write_text(text.replace(old, new))
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    assert edited


PROVIDERS = {"from Spark's to ours": (SPARKS, OURS), "from ours to Spark's": (OURS, SPARKS)}
both_ways = pytest.mark.parametrize(("first", "second"), PROVIDERS.values(), ids=PROVIDERS)


def three_batches_on_sparks_store(spark: Any, directory: Path) -> tuple[list[Output], Counter[str]]:
    made = events.batches(3)
    stays = make(spark, directory / "stays", provider=SPARKS)
    return run_with_restarts(stays, [made[:2], made[2:]]), stays.state()


@both_ways
def test_query_ignores_a_provider_set_after_its_first_batch(
    spark: Any, tmp_path: Path, recordings: Recordings, first: str, second: str
) -> None:
    made = events.batches(3)
    query = make(spark, tmp_path / "changes", provider=first)
    outputs = run_with_restarts(query, [made[:2]])
    query.session_provider = second
    outputs += run_with_restarts(query, [made[2:]])
    recordings.compare(
        "three batches", (outputs, query.state()), lambda: three_batches_on_sparks_store(spark, tmp_path)
    )


@both_ways
def test_checkpoint_of_another_provider_is_rejected_unchanged(
    spark: Any, tmp_path: Path, recordings: Recordings, first: str, second: str
) -> None:
    from pyspark.errors import StreamingQueryException

    made = events.batches(3)
    query = make(spark, tmp_path, provider=first)
    outputs = run_with_restarts(query, [made[:2]])
    rename_provider(query, first, second)
    # Its maintenance may still write.
    unload_all(spark)
    before = files(query.checkpoint)
    query.session_provider = second
    query.feed(made[2])
    with pytest.raises(StreamingQueryException) as raised:
        query.run()
    message = str(raised.value)
    if second == OURS:
        assert "was written by another state store provider" in message
        assert "operator 0, partition" in message
        assert "providerClass" in message
        assert str(query.checkpoint / "state") in message
    after = files(query.checkpoint)
    # Spark plans the new batch before any store is opened.
    planned = {name for name in after if name.split("/")[0] in ("offsets", "sources")}
    assert after.keys() - before.keys() <= planned
    assert {name: after[name] for name in before} == before

    # And so nothing is lost.
    rename_provider(query, second, first)
    query.session_provider = first
    outputs.append(query.run())
    recordings.compare(
        "three batches", (outputs, query.state()), lambda: three_batches_on_sparks_store(spark, tmp_path)
    )
