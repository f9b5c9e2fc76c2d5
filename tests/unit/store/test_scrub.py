"""Damage of stored state is found while the query runs, and nothing else is taken for damage."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spark_statestore.errors import CheckpointIOError
from spark_statestore.storage import CheckpointName
from spark_statestore.store import scrub as scrub_module
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.scrub import Scrub
from tests.spark.counting import wait_until
from tests.unit.store.stores import SMALL_FILES, commit, open_store

VERSIONS = 4


def chain(directory: Path, interval: int = 1) -> StoreDirectory:
    """Four versions: each second one in a file, the others inside of the metadata."""
    store = open_store(directory, replace(SMALL_FILES, scrub_interval=interval))
    parent = None
    for version in range(1, VERSIONS + 1):
        size = 2_000 if version % 2 else 10
        parent = commit(store, CheckpointName(version), {b"%d" % version: bytes(size)}, parent=parent).handle
    return store


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def cut(path: Path, at: int) -> None:
    path.write_bytes(path.read_bytes()[:at])


def remove(path: Path, at: int) -> None:
    path.unlink()


def damaged_versions(store: StoreDirectory) -> list[int]:
    assert store.newest_handle is not None
    entries = store.newest_handle[1].entries
    return [entry.version for entry in entries if entry.state.stream_state_handle_id in store.damaged]


@pytest.mark.parametrize("damage", [flip, cut, remove])
@pytest.mark.parametrize("version", range(1, VERSIONS + 1))
def test_every_damaged_stream_is_found(
    tmp_path: Path, version: int, damage: Callable[[Path, int], None]
) -> None:
    store = chain(tmp_path)
    Scrub().scrub(store)
    assert damaged_versions(store) == []
    (file,) = tmp_path.glob(f"shared/{version}-*" if version % 2 else f"chk-{version}/_metadata")
    # Within the stream: that in metadata begins at byte 40.
    damage(file, 60)
    Scrub().scrub(store)
    assert damaged_versions(store) == [version]


def test_storage_that_fails_shows_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = chain(tmp_path)

    def fail(*_: object) -> None:
        raise CheckpointIOError("the storage does not answer")

    monkeypatch.setattr(scrub_module, "stream_error", fail)
    Scrub().scrub(store)
    assert damaged_versions(store) == []


def test_stream_that_was_discarded_meanwhile_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = chain(tmp_path)
    stream_error = scrub_module.stream_error

    def supersede(store: StoreDirectory, name: CheckpointName, entry: object) -> object:
        # The first stream is read when a full commit has superseded it.
        if name.version == 1:
            for file in (tmp_path / "shared").glob("1-*"):
                file.unlink()
            commit(store, CheckpointName(VERSIONS + 1), {b"all": b"rows"})
        return stream_error(store, name, entry)  # type: ignore[arg-type]

    monkeypatch.setattr(scrub_module, "stream_error", supersede)
    Scrub().scrub(store)
    assert store.damaged == frozenset()


def test_store_is_due_after_its_interval(tmp_path: Path) -> None:
    now = time.monotonic()
    stores = [chain(tmp_path / f"{interval}", interval) for interval in (1, 86_400, 0)]
    soon, tomorrow, never = (store.scrub_at - now for store in stores)
    assert 0 < soon < 60
    assert 86_000 < tomorrow < 87_000
    assert never == math.inf


def test_submitted_stores_are_scrubbed_in_the_background(tmp_path: Path) -> None:
    stores = [chain(tmp_path / f"{number}", 100) for number in range(3)]
    for file in tmp_path.glob("*/shared/1-*"):
        file.unlink()
    scrub = Scrub()
    for store in stores:
        store.scrub_at = 0
        scrub.submit(store)
    assert wait_until(lambda: all(store.damaged for store in stores), 30)
    assert [damaged_versions(store) for store in stores] == [[1]] * 3
    assert min(store.scrub_at for store in stores) > time.monotonic() + 50


def test_scrub_reads_at_a_bounded_rate(tmp_path: Path) -> None:
    store = chain(tmp_path)
    assert store.newest_handle is not None
    size = store.newest_handle[1].state_size
    began = time.monotonic()
    Scrub(bytes_per_second=4 * size).scrub(store)
    assert time.monotonic() - began >= 0.2
