"""Local copies of full snapshots: a load that starts from one has the same rows as one that does not."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from py4j.protocol import Py4JJavaError

from tests.spark.counting import Program
from tests.spark.harness import Family, Provider, Row
from tests.spark.test_cold_loads import KINDS, batches, key_of, numbers

KEYS = 60

FAMILIES = [*KINDS, Family(multiple=True), Family(key="t bigint, a string", spec=("range", 0), multiple=True)]


def options(copies: Path | str, **confs: str) -> dict[str, str]:
    # Every stream is a file of its own, so that small full snapshots have copies, too.
    return {
        "backend__localRecovery": str(copies),
        "backend__fileStateThreshold": "0",
        "minDeltasForSnapshot": "3",
    } | confs


def commit(provider: Provider, version: int, rows: dict[Row, Row | None]) -> dict[str, int]:
    script = (store := provider.open(version)).script()
    for key, value in rows.items():
        if value is None:
            script.remove(key)
        else:
            script.put(key, value)
    script.run()
    assert store.commit() == version + 1
    return store.metrics


def rows_at(provider: Provider, version: int) -> dict[Row, Row]:
    store = provider.open_read(version)
    rows = store.rows()
    store.release()
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def filling(value: int) -> dict[Row, Row]:
    return {("fill", number): (value, "x" * 9_000) for number in range(KEYS)}


def copies_in(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


@pytest.fixture
def restart(spark: Any, tmp_path: Path) -> Callable[..., Provider]:
    """Return a function that opens a new instance of the store, whose copies are in ``copies``."""
    (tmp_path / "copies").mkdir()

    def opened(partition: int = 0, **confs: str) -> Provider:
        place = f"file:{tmp_path}/query"
        return Provider(spark, place, partition=partition, **options(tmp_path / "copies", **confs))

    return opened


def test_load_writes_a_copy_that_the_next_one_uses(restart: Callable[..., Provider], tmp_path: Path) -> None:
    first = restart()
    commit(first, 0, filling(1))
    commit(first, 1, {("a", 1): (2, "s")})
    assert not copies_in(tmp_path / "copies")
    second = restart()
    metrics = commit(second, 2, {("a", 1): (3, "t"), ("fill", 0): None})
    assert metrics["localCopyLoads"] == 0
    second.await_background()
    (copy,) = copies_in(tmp_path / "copies")
    assert copy.stat().st_mode & 0o077 == 0
    third = restart()
    metrics = commit(third, 3, {("b", 1): (4, "u")})
    assert metrics["localCopyLoads"] == 1
    # The three deltas, without the full snapshot.
    assert 0 < metrics["checkpointLoadBytes"] < 9_000
    expected = filling(1) | {("a", 1): (3, "t"), ("b", 1): (4, "u")}
    del expected["fill", 0]
    assert rows_at(restart(), 4) == expected
    assert rows_at(restart(backend__localRecovery="off"), 4) == expected


def test_many_changes_over_a_copy_are_all_applied(restart: Callable[..., Provider]) -> None:
    expected: dict[Row, Row] = {("k", number): (number, "x" * 50) for number in range(4_000)}
    commit(restart(), 0, expected)
    second = restart()
    # Changes are prefetched in groups, of which these are several.
    changes: dict[Row, Row | None] = {("k", number): (-number, "y") for number in range(300, 600)}
    changes |= {("k", number): None for number in range(500, 700)}
    changes |= {("k", number): (number, "new") for number in range(4_000, 4_150)}
    commit(second, 1, changes)
    second.await_background()
    third = restart()
    assert commit(third, 2, {("a", 1): (1, "s")})["localCopyLoads"] == 1
    expected |= {key: row for key, row in changes.items() if row is not None} | {("a", 1): (1, "s")}
    for key in [key for key, row in changes.items() if row is None]:
        del expected[key]
    assert rows_at(restart(), 3) == expected
    assert rows_at(restart(backend__localRecovery="off"), 3) == expected


def test_uploaded_snapshot_is_copied_and_older_copies_are_removed(
    restart: Callable[..., Provider], tmp_path: Path
) -> None:
    provider = restart()
    expected: dict[Row, Row] = {}
    names = set()
    for version in range(15):
        changes = {("fill", (version * 7 + step) % KEYS): (version, "x" * 9_000) for step in range(9)}
        commit(provider, version, changes)
        expected |= changes
        provider.snapshot()
        provider.await_background()
        present = copies_in(tmp_path / "copies")
        names |= {path.name for path in present}
        # Copies of the present full snapshot, and of one that the next commit uses.
        assert len(present) <= 2
    assert len(names) > 2
    cold = restart()
    assert commit(cold, 15, {("a", 1): (1, "s")})["localCopyLoads"] == 1
    assert rows_at(cold, 16) == expected | {("a", 1): (1, "s")}


@pytest.mark.parametrize("heap", ["1g", "0"], ids=["in the heap", "mapped"])
def test_load_from_a_copy_has_the_rows_of_one_without(spark: Any, heap: str) -> None:
    loads = used = 0

    @settings(max_examples=5)
    @given(
        family=st.sampled_from(FAMILIES),
        batches=batches,
        later=st.lists(st.dictionaries(numbers, st.none() | st.just(1), max_size=3), min_size=2, max_size=4),
    )
    def compare(
        family: Family, batches: list[dict[int, int | None]], later: list[dict[int, int | None]]
    ) -> None:
        nonlocal loads, used
        with tempfile.TemporaryDirectory() as directory:

            def instance(copies: str) -> Provider:
                settings = options(copies, minDeltasForSnapshot="100", backend__maxHeapBytes=heap)
                place = f"file:{directory}/query"
                return Provider(spark, place, default=family, families=family.multiple, **settings)

            copied, version = f"{directory}/copies", 1
            writer = instance(copied)
            # So much that later batches do not write everything.
            run(writer, 0, family, dict.fromkeys(range(100, 110), 9_000))
            for changes in batches:
                run(writer, version, family, changes)
                version += 1
            writer.close()
            for changes in later:
                cold = instance(copied)
                loads += 1
                used += run(cold, version, family, changes)
                version += 1
                cold.await_background()
                cold.close()
                answers = [answer(instance(copies), version, family) for copies in (copied, "off")]
                assert answers[0] == answers[1]

    compare()
    assert used > loads / 4


def run(provider: Provider, version: int, family: Family, changes: dict[int, int | None]) -> int:
    """Commit a batch; return how many loads began with a copy."""
    script = (store := provider.open(version)).script()
    for number, size in changes.items():
        key = key_of(family, number)
        if size is None:
            script.remove(key)
        elif family.multiple:
            script.merge(key, (version, "x" * size))
            script.merge(key, (version, "y"))
        else:
            script.put(key, (version, "x" * size))
    script.run()
    assert store.commit() == version + 1
    return store.metrics["localCopyLoads"]


def answer(provider: Provider, version: int, family: Family) -> Any:
    """Return what a version answers: all rows, those of each prefix, and the values of each key."""
    store = provider.open_read(version)
    rows = store.rows()
    answers: list[Any] = [rows if family.spec[0] in ("range", "timestampPostfix") else sorted(rows)]
    if family.spec[0] == "prefix":
        answers += [sorted(store.prefix_rows(prefix)) for prefix in ("a", "b")]
    if family.multiple:
        answers += [{key: store.values(key) for key, _ in rows}]
    answers += [store.get(key_of(family, number)) for number in range(6)]
    store.release()
    provider.close()
    return answers


def damaged(copy: bytes, other_copy: bytes) -> dict[str, bytes]:
    middle = len(copy) // 3
    return {
        "a flipped byte": copy[:middle] + bytes([copy[middle] ^ 1]) + copy[middle + 1 :],
        "a flipped byte of the description": copy[:-60] + bytes([copy[-60] ^ 1]) + copy[-59:],
        "cut": copy[:middle],
        "empty": b"",
        "zeros": bytes(len(copy)),
        "another layout": copy[:-9] + b"\x7f" + copy[-8:],
        "that of another stream": other_copy,
    }


def test_damaged_copy_costs_time_alone(restart: Callable[..., Provider], tmp_path: Path) -> None:
    commit(restart(partition=1), 0, filling(7))
    provider = restart()
    commit(provider, 0, filling(1))
    commit(provider, 1, {("a", 1): (2, "s")})
    # The two stores have copies by a load.
    for partition in (1, 0):
        cold = restart(partition=partition)
        rows_at(cold, 1)
        cold.await_background()
    expected = filling(1) | {("a", 1): (2, "s")}
    copies = {path: path.read_bytes() for path in copies_in(tmp_path / "copies")}
    names = [path.name for path in (tmp_path / "query/state/0/0/shared").iterdir()]
    (own_path,) = (path for path in copies if path.name in names)
    (other_copy,) = (content for path, content in copies.items() if path != own_path)
    for number, (damage, content) in enumerate(damaged(copies[own_path], other_copy).items()):
        version = 2 + 2 * number
        own_path.write_bytes(content)
        cold = restart()
        assert commit(cold, version, {("b", 1): (version, "t")})["localCopyLoads"] == 0, damage
        expected["b", 1] = (version, "t")
        assert rows_at(restart(), version + 1) == expected, damage
        # Removed, and written again.
        cold.await_background()
        assert commit(restart(), version + 1, {("c", 1): (1, "t")})["localCopyLoads"] == 1, damage
        expected["c", 1] = (1, "t")


def test_copy_that_disappears_while_it_is_used_is_no_loss(
    restart: Callable[..., Provider], tmp_path: Path
) -> None:
    commit(restart(), 0, filling(1))
    cold = restart()
    rows_at(cold, 1)
    cold.await_background()
    mapped = restart(backend__maxHeapBytes="0")
    assert commit(mapped, 1, {("a", 1): (2, "s")})["localCopyLoads"] == 1
    for copy in copies_in(tmp_path / "copies"):
        copy.unlink()
    commit(mapped, 2, {("fill", 1): (3, "t")})
    assert rows_at(mapped, 3) == filling(1) | {("a", 1): (2, "s"), ("fill", 1): (3, "t")}
    restart()


@pytest.mark.parametrize("place", ["read-only", "a file", "of others"])
def test_disk_without_copies_costs_nothing(
    restart: Callable[..., Provider], tmp_path: Path, place: str
) -> None:
    copies = Path("/proc/copies") if place == "read-only" else tmp_path / "other"
    if place == "a file":
        copies.write_text("no directory")
    elif place == "of others":
        (copies / f"spark-statestore-local-{os.geteuid()}").mkdir(parents=True)
        (copies / f"spark-statestore-local-{os.geteuid()}").chmod(0o755)
    settings = {"backend__localRecovery": str(copies)}
    commit(restart(**settings), 0, filling(1))
    for _ in range(2):
        cold = restart(**settings)
        assert rows_at(cold, 1) == filling(1)
        cold.await_background()
    assert not [path for path in copies_in(copies) if path.is_file()]


def test_version_that_is_rolled_back_is_not_copied(restart: Callable[..., Provider], tmp_path: Path) -> None:
    settings = {"minDeltasForSnapshot": "1", "backend__compression": "none"}
    provider = restart(**settings)
    large = {("fill", number): (number, "x" * 100_000) for number in range(20)}
    commit(provider, 0, large)
    expected, before = dict(large), dict(large)
    uploaded: list[Path] = []
    with provider.holding_copies():
        version = 0
        while not uploaded:
            version += 1
            before = dict(expected)
            changes = {("fill", (8 * version + step) % 20): (version, "x" * 100_000) for step in range(8)}
            commit(provider, version, changes)
            expected |= changes
            provider.snapshot()
            # As large as the state.
            uploaded = [
                path
                for path in (tmp_path / "query/state/0/0/shared").glob(f"{version + 1}-*")
                if path.stat().st_size > 20 * 100_000
            ]
        # The copy of the newest version waits. Spark runs the batch again.
        metrics = commit(provider, version, {("c", 1): (3, "s")})
        assert metrics["checkpointLoadBytes"] == 0
    provider.await_background()
    assert not copies_in(tmp_path / "copies")
    for _ in range(2):
        cold = restart(**settings)
        assert rows_at(cold, version + 1) == before | {("c", 1): (3, "s")}
        cold.await_background()


def test_copy_of_another_process_is_used(restart: Callable[..., Provider], tmp_path: Path) -> None:
    commit(restart(), 0, filling(1))
    cold = restart()
    rows_at(cold, 1)
    cold.await_background()
    rows = {("fill", 1): (5, "t"), ("a", 1): (6, "u")}
    with Program(
        "local_copy",
        location=f"file:{tmp_path}/query",
        confs=options(tmp_path / "copies"),
        version=1,
        rows=list(rows.items()),
    ) as program:
        before, metrics = program.next("committed")
    assert {tuple(key): tuple(value) for key, value in before} == filling(1)
    assert metrics["localCopyLoads"] == 1
    assert rows_at(restart(), 2) == filling(1) | rows


def test_copy_stands_for_a_missing_snapshot(restart: Callable[..., Provider], tmp_path: Path) -> None:
    commit(restart(), 0, filling(1))
    cold = restart()
    rows_at(cold, 1)
    cold.await_background()
    for stream in (tmp_path / "query/state/0/0/shared").iterdir():
        stream.rename(tmp_path / "stream")
    assert rows_at(restart(), 1) == filling(1)
    with pytest.raises(Py4JJavaError, match="which is missing"):
        restart(backend__localRecovery="off").open_read(1)
    (tmp_path / "stream").rename(stream)
    assert rows_at(restart(backend__localRecovery="off"), 1) == filling(1)


def test_copies_of_a_host_have_a_bound(restart: Callable[..., Provider], tmp_path: Path) -> None:
    limit = 3_000_000
    settings = {"backend__localRecoveryMaxBytes": str(limit)}
    for partition in range(4):
        commit(restart(partition, **settings), 0, filling(partition))
    cold = [restart(partition, **settings) for partition in range(4)]
    with cold[0].holding_copies():
        # All get a place before the first copy is written.
        for provider in cold:
            rows_at(provider, 1)
    cold[0].await_background()
    sizes = [path.stat().st_size for path in copies_in(tmp_path / "copies")]
    assert 0 < sum(sizes) <= limit
    # The last one of the four is there.
    assert commit(restart(3, **settings), 1, {("a", 1): (1, "s")})["localCopyLoads"] == 1


def test_copy_of_another_layout_is_not_used(spark: Any, tmp_path: Path) -> None:
    key = "a string, b string, c bigint"

    def scanned(columns: int, **confs: str) -> Provider:
        settings = options(tmp_path / "copies", **confs)
        return Provider(spark, f"file:{tmp_path}/query", key=key, prefix_columns=columns, **settings)

    rows = {("p", f"{number % 3}", number): (number, "s") for number in range(60)}
    commit(scanned(1), 0, dict(rows))
    first = scanned(1)
    rows_at(first, 1)
    first.await_background()
    store = scanned(2).open_read(1)
    assert sorted(store.prefix_rows("p", "1")) == sorted(item for item in rows.items() if item[0][1] == "1")


def test_damaged_change_leaves_the_copy(restart: Callable[..., Provider], tmp_path: Path) -> None:
    provider = restart()
    commit(provider, 0, filling(1))
    cold = restart()
    commit(cold, 1, {("a", 1): (2, "s")})
    cold.await_background()
    (copy,) = copies_in(tmp_path / "copies")
    (change,) = (tmp_path / "query/state/0/0/shared").glob("2-*")
    sound = change.read_bytes()
    middle = len(sound) // 2
    change.write_bytes(sound[:middle] + bytes([sound[middle] ^ 1]) + sound[middle + 1 :])
    with pytest.raises(Py4JJavaError, match=change.name):
        restart().open_read(2)
    assert copy.exists()
    change.write_bytes(sound)
    assert commit(restart(), 2, {("a", 1): (3, "s")})["localCopyLoads"] == 1


def test_state_that_has_shrunk_has_a_copy(restart: Callable[..., Provider], tmp_path: Path) -> None:
    provider = restart(minDeltasForSnapshot="100")
    commit(provider, 0, {("fill", number): (number, "x" * 9_000) for number in range(100)})
    # A load compacts what these leave.
    for version in range(1, 7):
        commit(provider, version, {("fill", 10 * version + step): None for step in range(10)})
    loads = []
    for version in (7, 8):
        cold = restart(minDeltasForSnapshot="100")
        loads.append(commit(cold, version, {("a", 1): (version, "s")})["localCopyLoads"])
        cold.await_background()
    assert loads == [0, 1]
    expected = {("fill", number): (number, "x" * 9_000) for number in range(100) if not 10 <= number < 70}
    assert rows_at(restart(), 9) == expected | {("a", 1): (8, "s")}
