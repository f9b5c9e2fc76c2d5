"""A running query survives every command, and is not rolled back while it runs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pytest

from spark_statestore.cli.app import app
from spark_statestore.query.verify import verify
from tests.spark.counting import wait_until
from tests.spark.queries import Query, unload_all
from tests.unit.assess.logs import HDFS_LOG
from tests.unit.cli.another_process import run_elsewhere

WORDS = pa.schema([("word", pa.string())])
REFUSED = "QueryRunningError"


def command_names(group: click.Group = app, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield every command of the command line, by the words that call it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from command_names(command, (*prefix, name))
        else:
            yield (*prefix, name)


@contextmanager
def running(query: Query) -> Iterator[Any]:
    """Run a query whose input grows: a batch about every 0.2 s."""
    ended = threading.Event()

    def feed() -> None:
        number = 0
        while not ended.wait(0.2):
            query.feed([{"word": f"{(number * 7 + row) % 40}"} for row in range(20)])
            number += 1

    query.feed([{"word": "first"}])
    stream = query.start([], processingTime="100 milliseconds")
    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        yield stream
        ended.set()
        feeder.join()
        stream.processAllAvailable()
    finally:
        ended.set()
        feeder.join()
        stream.stop()


def wait_for_batch(query: Query, batch: int) -> None:
    assert wait_until((query.checkpoint / "commits" / str(batch)).exists, 60), f"batch {batch} is not done"


def numbers(log: Path) -> list[int]:
    return sorted(int(path.name) for path in log.iterdir() if path.name.isdigit())


def counted(query: Query) -> Counter[str]:
    """Return the answer of a batch job over all input."""
    rows = query.spark.read.parquet(str(query.checkpoint.parent / "input")).groupBy("word").count().collect()
    return Counter({row["word"]: row["count"] for row in rows})


def state_content(query: Query) -> Counter[str]:
    """Return the content of the query's state."""
    rows = (
        query.spark.read.format("statestore").load(str(query.checkpoint)).select("key.*", "value.*").collect()
    )
    return Counter({row[0]: row[1] for row in rows})


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_commands_do_not_disturb_a_running_query(spark: Any, tmp_path: Path, checkpoint_format: int) -> None:
    query = Query(
        spark,
        tmp_path / "query",
        lambda events: events.groupBy("word").count(),
        "update",
        WORDS,
        checkpoint_format=checkpoint_format,
        # More than run while the commands do.
        confs={"spark.sql.streaming.minBatchesToRetain": "1000"},
    )
    url, target = str(query.checkpoint), str(tmp_path / "savepoints")
    names = ("clone", "rescaled", "restored", "claimed", "put", "deleted", "migrated")
    new = [str(tmp_path / name) for name in names]
    (tmp_path / "changes.jsonl").write_text('{"key": {"word": "none"}, "value": {"count": 1}}\n')
    with running(query):
        wait_for_batch(query, 15)
        (_, canonical), (_, pointer) = run_elsewhere(
            [
                ["savepoint", "trigger", url, "--target", target, "--kind", kind]
                for kind in ("canonical", "pointer")
            ]
        )
        canonical, pointer = canonical["path"], pointer["path"]
        batch = str(numbers(query.checkpoint / "commits")[-1])
        early = str(int(batch) - 2)
        # Arguments, and the expected exit codes; 1 only with the refusal of a running query.
        tried: list[tuple[list[str], set[int]]] = [
            (["ls", url], {0}),
            (["ls", url, "--by-partition"], {0}),
            (["show", url], {0}),
            (["get", url, '"1"'], {0}),
            (["diff", url, early, batch], {0, 1}),
            (["plot", url, str(tmp_path / "state.png"), "--batches", "5"], {0}),
            (["watch", url, "--count", "1"], {0}),
            (["assess", str(HDFS_LOG)], {0}),
            (["plan"], {0}),
            (["verify", url], {0}),
            (["doctor", url], {0}),
            (["holds", url], {0}),
            (["jar"], {0}),
            (["begin-output", str(tmp_path / "output"), batch], {0}),
            (["completion", "bash"], {0}),
            (["gc", url], {0}),
            (["gc", url, "--older-than", "0"], {0}),
            (["rollback", url, early, "--dry-run"], {0}),
            (["rollback", url, early], {1}),
            (["repair", url, "--dry-run"], {0}),
            (["repair", url], {0}),
            (["clone", url, new[0]], {0}),
            (["rescale", url, new[1], "3"], {1}),
            (["migrate", url, new[0], new[6]], {0}),
            (["state", "put", url, new[4], str(tmp_path / "changes.jsonl")], {0}),
            (["state", "delete", url, new[5], "--where", "value.count > 2"], {0}),
            (["state", "put", url, str(tmp_path / "changes.jsonl"), "--in-place"], {1}),
            (["state", "delete", url, "--where", "key.word = 'none'", "--in-place"], {1}),
            (["state", "erase", url, "--where", "key.word = 'none'"], {1}),
            (["state", "erase", url, "--where", "key.word = 'none'", "--savepoint", canonical], {1}),
            (["savepoint", "trigger", url, "--target", target], {0}),
            (["savepoint", "list", target], {0}),
            (["savepoint", "show", pointer], {0}),
            (["savepoint", "restore", pointer, new[2], "--partitions", "3"], {0}),
            (["savepoint", "restore", canonical, new[3], "--claim-mode", "claim", "--dry-run"], {0}),
            (["savepoint", "restore", canonical, new[3], "--claim-mode", "claim"], {0}),
            (["savepoint", "dispose", pointer], {0}),
        ]
        # Converting needs a Spark session of its own, see test_conversion_faults.py.
        for name in set(command_names()) - {("convert",)}:
            assert any(tuple(arguments[: len(name)]) == name for arguments, _ in tried), name
        before = numbers(query.checkpoint / "commits")[-1]
        results = run_elsewhere([arguments for arguments, _ in tried])
        for (arguments, right), (code, printed) in zip(tried, results, strict=True):
            assert code in right, (arguments, printed)
            if 0 not in right:
                assert printed["error"]["type"] == REFUSED, (arguments, printed)
        # It continued meanwhile, and continues.
        after = numbers(query.checkpoint / "commits")[-1]
        assert after > before
        wait_for_batch(query, after + 3)
    unload_all(spark)
    assert state_content(query) == counted(query)
    assert verify(url).problems == ()
    for log in ("offsets", "commits"):
        batches = numbers(query.checkpoint / log)
        assert batches == list(range(batches[0], batches[-1] + 1))
    for copy in (new[0], *new[2:]):
        assert verify(copy).problems == ()
    assert not list(query.checkpoint.glob("rolled-back/*"))
