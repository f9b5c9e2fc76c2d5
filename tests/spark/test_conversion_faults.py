"""Conversions that are refused, fail or are killed leave no target that looks like a checkpoint.

The source is unchanged.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import spark_statestore
from spark_statestore.conversion import space
from spark_statestore.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    ConversionError,
    QueryRunningError,
    StateStoreError,
)
from spark_statestore.query.query_checkpoint import RESERVED
from tests.spark.counting import GROUPS, Program, cluster_environment, is_gone, kill, wait_until
from tests.spark.queries import OURS, ROCKSDB, STATE_STORE, Query, configured
from tests.support.effort import EFFORT
from tests.support.spark_versions import NEWEST_READABLE_FORMAT
from tests.support.trees import files_below
from tests.system.upgrades.cases import CASES, SCHEMAS, input_of

PROVIDER = STATE_STORE + "providerClass"


@pytest.fixture(scope="module")
def checkpoint_of(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, int], Path]:
    """Return a function that returns a checkpoint of a query with two committed batches."""
    checkpoints: dict[tuple[str, str, int], Path] = {}

    def write(name: str, provider: str = ROCKSDB, checkpoint_format: int = 1) -> Path:
        key = (name, provider, checkpoint_format)
        if key not in checkpoints:
            case = CASES[name]
            query = Query(
                spark,
                tmp_path_factory.mktemp("written"),
                case.build,
                case.mode,
                SCHEMAS[case.reads],
                provider=provider,
                checkpoint_format=checkpoint_format,
                confs=case.confs,
            )
            query.feed(*input_of(case.reads)[:2])
            query.run()
            checkpoints[key] = query.checkpoint
        return checkpoints[key]

    return write


@pytest.fixture
def checkpoint(checkpoint_of: Callable[..., Path], tmp_path: Path) -> Path:
    """Return a copy of a checkpoint on RocksDB."""
    return shutil.copytree(checkpoint_of("aggregation, update mode"), tmp_path / "checkpoint", symlinks=True)


def edit(path: Path, change: Callable[[str], str]) -> None:
    """Change a file of Spark's, without its checksums."""
    path.write_text(change(path.read_text()))
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@contextlib.contextmanager
def refused(error: type[StateStoreError], pattern: str, source: Path, target: Path) -> Iterator[None]:
    """Expect an error that leaves the source as it was, and no target."""
    before = files_below(source)
    with pytest.raises(error, match=pattern):
        yield
    assert files_below(source) == before
    assert not target.exists() or list(target.rglob("*")) == []


def test_convert_refuses_running_query(spark: Any, checkpoint: Path, tmp_path: Path) -> None:
    os.utime(checkpoint / "commits" / "1")
    with refused(QueryRunningError, "^pass --stopped .*It seems to run: ", checkpoint, tmp_path / "target"):
        spark_statestore.convert(spark, str(checkpoint), str(tmp_path / "target"))


def test_convert_refuses_query_that_commits_meanwhile(
    spark: Any, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_statestore.conversion import api

    compare = api._Run.compare

    def compare_late(*arguments: Any) -> Any:
        result = compare(*arguments)
        shutil.copy(checkpoint / "offsets" / "1", checkpoint / "offsets" / "2")
        return result

    monkeypatch.setattr(api._Run, "compare", compare_late)
    with pytest.raises(QueryRunningError, match="it has written offsets/2 during the conversion"):
        spark_statestore.convert(spark, str(checkpoint), str(tmp_path / "target"), stopped=True)
    assert not (tmp_path / "target").exists()


def test_convert_refuses_open_batch_unless_it_is_left_out(
    spark: Any, checkpoint: Path, tmp_path: Path
) -> None:
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    target = tmp_path / "target"
    with refused(ConversionError, r"it has begun 1, and committed 0\. .*--batch 0", checkpoint, target):
        spark_statestore.convert(spark, str(checkpoint), str(target), stopped=True)
    assert spark_statestore.convert(spark, str(checkpoint), str(target), batch=0, stopped=True).batch == 0


def in_offsets(old: str, new: str) -> Callable[[Path], None]:
    """Return a function that changes the settings of all batches of a checkpoint."""

    def change(checkpoint: Path) -> None:
        for log in (checkpoint / "offsets").glob("[0-9]*"):
            edit(log, lambda text: text.replace(old, new))

    return change


def make_operator_unknown(checkpoint: Path) -> None:
    path = checkpoint / "state/0/_metadata/metadata"
    edit(path, lambda text: text.replace("stateStoreSave", "stateOfTomorrow"))


def remove_state(checkpoint: Path) -> None:
    for path in (checkpoint / "state/0/1").glob("[0-9]*"):
        path.unlink()


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (in_offsets(ROCKSDB, "com.example.OtherProvider"), r"com\.example\.OtherProvider, whose class"),
        (in_offsets('"unsaferow"', '"avro"'), "encodingFormat=avro, whose rows"),
        (make_operator_unknown, r"\(stateOfTomorrow\) is unknown"),
        (remove_state, "copying failed: "),
    ],
    ids=["provider without classes", "rows in Avro", "unknown operator", "missing state"],
)
def test_convert_refuses_state_that_it_cannot_read(
    spark: Any, checkpoint: Path, tmp_path: Path, change: Callable[[Path], None], pattern: str
) -> None:
    change(checkpoint)
    target = tmp_path / "target"
    with refused(ConversionError, pattern, checkpoint, target):
        spark_statestore.convert(spark, str(checkpoint), str(target), stopped=True)


@pytest.mark.parametrize(
    ("overrides", "error", "pattern"),
    [
        ({"source": "/nowhere"}, CheckpointNotFoundError, "no file 'metadata'"),
        ({"batch": 7}, CheckpointNotFoundError, "has no batch 7"),
        ({"to": "rocksdb"}, ConversionError, "RocksDBStateStoreProvider already"),
    ],
)
def test_convert_refuses_missing_source_and_same_store(
    spark: Any,
    checkpoint: Path,
    tmp_path: Path,
    overrides: dict[str, Any],
    error: type[StateStoreError],
    pattern: str,
) -> None:
    arguments = {"source": str(checkpoint), "target": str(tmp_path / "target"), "stopped": True} | overrides
    with refused(error, pattern, checkpoint, tmp_path / "target"):
        spark_statestore.convert(spark, **arguments)


def test_convert_refuses_target_with_files(spark: Any, checkpoint: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    for dry_run in (True, False):
        with pytest.raises(CheckpointExistsError, match=r"is not empty: it has notes\.txt"):
            spark_statestore.convert(spark, str(checkpoint), str(target), stopped=True, dry_run=dry_run)
    assert files_below(target) == {"notes.txt": b"mine"}


def test_convert_refuses_too_little_space(
    spark: Any, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 100))
    target = tmp_path / "target"
    with refused(ConversionError, r"takes \d{4,} bytes, but .* has 100 bytes free", checkpoint, target):
        spark_statestore.convert(spark, str(checkpoint), str(target), stopped=True)


@pytest.mark.parametrize(
    ("name", "checkpoint_format", "target_format", "pattern"),
    [
        ("outer join, state format 3", 1, None, r"\(symmetricHashJoin\) keeps several column families"),
        ("aggregation, update mode", 1, 2, "does not support state checkpoint format 2"),
    ],
)
def test_convert_refuses_what_hdfs_cannot_hold(
    spark: Any,
    checkpoint_of: Callable[..., Path],
    tmp_path: Path,
    name: str,
    checkpoint_format: int,
    target_format: int | None,
    pattern: str,
) -> None:
    source = checkpoint_of(name, ROCKSDB, checkpoint_format)
    with refused(ConversionError, pattern, source, tmp_path / "target"):
        spark_statestore.convert(
            spark,
            str(source),
            str(tmp_path / "target"),
            "hdfs",
            stopped=True,
            checkpoint_format=target_format,
        )


def test_dry_run_changes_nothing(spark: Any, checkpoint: Path, tmp_path: Path) -> None:
    before = files_below(checkpoint)
    plan = spark_statestore.convert(
        spark, str(checkpoint), str(tmp_path / "target"), partitions=5, stopped=True, dry_run=True
    )
    assert (plan.provider, plan.batch, plan.partitions, plan.states) == (OURS, 1, {0: 5}, ())
    assert plan.source_bytes
    assert files_below(checkpoint) == before
    assert not (tmp_path / "target").exists()


def test_convert_raises_if_values_differ(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_statestore.conversion import api

    def counts(stream: Any) -> Any:
        return stream.groupBy("k").count()

    def write_checkpoint(name: str, times: int) -> str:
        query = Query(spark, tmp_path / name, counts, "update", SCHEMAS["events"], provider=ROCKSDB)
        query.feed(rows, times * rows)
        query.run()
        return str(query.checkpoint)

    rows = input_of("events")[0]
    other_target, target = tmp_path / "other", tmp_path / "target"
    spark_statestore.convert(spark, write_checkpoint("twice", 2), str(other_target), stopped=True)
    source = write_checkpoint("once", 1)
    write = api._Run.write

    def write_other_state(run: Any) -> Any:
        result = write(run)
        # With the same keys, and values of the same size.
        shutil.rmtree(target / "state/0/0")
        shutil.copytree(other_target / "state/0/0", target / "state/0/0")
        return result

    monkeypatch.setattr(api._Run, "write", write_other_state)
    with pytest.raises(ConversionError, match="the source has"):
        spark_statestore.convert(spark, source, str(target), stopped=True)
    assert not target.exists()


def kill_group(program: Program) -> None:
    """Kill a program, and wait for its JVM, too, which ends later."""
    processes = [program.process.pid, *(p.pid for p in psutil.Process(program.process.pid).children(True))]
    os.killpg(program.process.pid, signal.SIGKILL)
    program.process.wait()
    assert wait_until(lambda: all(map(is_gone, processes)), 60)


def is_complete(target: Path) -> bool:
    metadata = target / "metadata"
    return metadata.exists() and metadata.read_bytes() != RESERVED


def test_conversion_is_replaced_only_after_its_kill(
    spark: Any, checkpoint_of: Callable[..., Path], tmp_path: Path
) -> None:
    source = checkpoint_of("aggregation, update mode", ROCKSDB, 2)
    before = files_below(source)
    target = tmp_path / "target"
    arguments = {"source": str(source), "target": str(target), "partitions": 3}
    with Program("convert", conversions=[arguments]) as program:
        assert program.next("started")
        end = time.monotonic() + 120
        # A store is written.
        while not any(target.glob("state/*/*/chk-*/_metadata")):
            assert time.monotonic() < end
            assert program.process.poll() is None
            time.sleep(0.001)
        pid = program.process.pid
        os.killpg(pid, signal.SIGSTOP)
        if not is_complete(target):
            with pytest.raises(CheckpointExistsError, match=f"runs in process {pid}"):
                spark_statestore.convert(spark, **arguments, stopped=True)
        kill_group(program)
    if not is_complete(target):
        with pytest.raises(CheckpointNotFoundError):
            spark_statestore.read_state(str(target))
        assert spark_statestore.convert(spark, **arguments, stopped=True).rows > 0
    else:
        # It is complete, and may have been killed before it removed the marker.
        (target / "_in-progress").unlink(missing_ok=True)
    assert files_below(source) == before
    assert_converted(spark, source, target)


@pytest.mark.soak
def test_conversion_that_is_killed_at_any_moment_runs_again(
    spark: Any, checkpoint_of: Callable[..., Path], tmp_path: Path
) -> None:
    seed = time.time_ns()
    print(f"seed {seed}")
    chance = random.Random(seed)
    source = checkpoint_of("outer join", ROCKSDB, 2)
    before = files_below(source)
    interrupted = 0
    for number in range(2 * EFFORT):
        targets = [tmp_path / f"{number}-{each}" for each in range(50)]
        arguments = [
            {
                "source": str(source),
                "target": str(target),
                "partitions": chance.choice([None, 3]),
            }
            for target in targets
        ]
        with Program("convert", conversions=arguments) as program:
            assert program.next("started")
            # The first conversion of a process takes longer than all others.
            for _ in range(chance.randrange(3)):
                assert program.next("converted") > 0
            time.sleep(chance.uniform(0, 3))
            kill_group(program)
        for target, options in zip(targets, arguments, strict=True):
            if target.exists() and not is_complete(target):
                interrupted += 1
                spark_statestore.convert(spark, **options, stopped=True)
            if target.exists():
                assert_converted(spark, source, target, {"joinSide": "left"}, {"joinSide": "right"})
        assert files_below(source) == before
    print(f"{interrupted} conversions were interrupted")


def assert_converted(spark: Any, source: Path, target: Path, *options: dict[str, str]) -> None:
    """Check that a target in this store is whole and has its source's rows, read by Spark's data source."""
    assert not (target / "_in-progress").exists()
    assert not (target / "_conversion").exists()
    checked = spark_statestore.verify(str(target))
    assert checked.ok, checked
    for store_options in options or ({},):
        if NEWEST_READABLE_FORMAT < 2:
            # The data source cannot read either; the conversion has compared them.
            continue
        with configured(spark, {STATE_STORE + "checkpointFormatVersion": "2"}):
            here, there = (
                Counter(map(repr, reader.load(str(at)).select("key", "value").collect()))
                for at in (source, target)
                for reader in [spark.read.format("statestore").options(**store_options)]
            )
        assert here == there
        assert here


@pytest.mark.soak
def test_conversion_on_a_cluster_survives_an_executor(built: Path, tmp_path: Path) -> None:
    places = [tmp_path / f"checkpoint-{number}" for number in range(3)]
    confs = {STATE_STORE + "checkpointFormatVersion": "2"}
    with Program(
        "move",
        cluster_environment(tmp_path),
        places=[str(place) for place in places],
        confs=confs,
        cluster=True,
    ) as program:
        for target in places[1:]:
            executors = program.next("converting")
            assert len(executors) == 2
            program.resume()
            assert wait_until(lambda at=target: any(at.glob("state/*/*")), 60)  # type: ignore[misc]
            kill(executors[0])
            assert program.next("converted") == GROUPS
            assert program.next("continued") >= 2
        program.end()
