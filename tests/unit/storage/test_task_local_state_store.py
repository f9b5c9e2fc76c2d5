"""Places of local copies: whose they are, how many stay, and what is not touched."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from spark_statestore.options import StorageOptions
from spark_statestore.storage.task_local_state_store import LocalCopy, TaskLocalStateStore


def copies(root: Path, store: str = "s3://bucket/state/0/0") -> TaskLocalStateStore:
    return TaskLocalStateStore(str(root), store)


def write(store: TaskLocalStateStore, name: str, oldest: int = 0) -> Path:
    place = store.store_local_state(name, 10, oldest)
    assert place is not None
    path = Path(place.path)
    path.write_bytes(bytes(10))
    return path


def test_copy_is_found_by_the_name_of_its_stream(tmp_path: Path) -> None:
    store = copies(tmp_path / "copies")
    assert store.retrieve_local_state("3-ab") is None
    path = write(store, "3-ab")
    assert store.retrieve_local_state("3-ab") == LocalCopy(str(path), "s3://bucket/state/0/0/3-ab")
    # Another store's stream of the same name is another one.
    assert copies(tmp_path / "copies", "s3://bucket/state/0/1").retrieve_local_state("3-ab") is None
    for directory in (tmp_path / "copies", path.parent):
        assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["", "3", "x-ab", "../3-ab", "3-ab/../../x", "3-ab.17.tmp"])
def test_name_of_another_form_has_no_copy(tmp_path: Path, name: str) -> None:
    store = copies(tmp_path)
    assert store.store_local_state(name, 10, 0) is None
    assert store.retrieve_local_state(name) is None


def test_older_copies_of_the_store_are_removed(tmp_path: Path) -> None:
    store = copies(tmp_path)
    foreign_copy = write(copies(tmp_path, "elsewhere"), "1-ab")
    paths = [write(store, f"{version}-ab", oldest=0) for version in (3, 10, 12)]
    newest = write(store, "15-ab", oldest=10)
    assert [path.exists() for path in (*paths, newest, foreign_copy)] == [False, True, True, True, True]


def test_use_of_a_copy_is_its_time_of_modification(tmp_path: Path) -> None:
    path = write(copies(tmp_path), "1-ab")
    os.utime(path, (1_000_000, 1_000_000))
    assert copies(tmp_path).retrieve_local_state("1-ab") is not None
    assert time.time() - path.stat().st_mtime < 60


def test_files_of_others_in_the_directory_stay(tmp_path: Path) -> None:
    store = copies(tmp_path)
    path = write(store, "1-ab")
    foreign = [tmp_path / "notes", tmp_path / ("f" * 32) / "notes", path.parent / "1-zz.1.tmp.bak"]
    for file in foreign:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(100))
    assert store.store_local_state("2-ab", 10, 2) is not None
    assert not path.exists()
    assert all(file.exists() for file in foreign)


def test_disk_that_is_nearly_full_has_no_copies(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    assert copies(tmp_path).store_local_state("1-ab", free // 8, 0) is None
    assert copies(tmp_path).store_local_state("1-ab", 10, 0) is not None


def test_file_that_was_not_finished_is_removed_an_hour_later(tmp_path: Path) -> None:
    store = copies(tmp_path)
    directory = write(store, "1-ab").parent
    fresh, stale = directory / "2-ab.71.tmp", directory / "2-ab.72.tmp"
    for file in (fresh, stale):
        file.write_bytes(b"half")
    os.utime(stale, (1_000_000, 1_000_000))
    assert store.store_local_state("2-ab", 10, 0) is not None
    assert fresh.exists()
    assert not stale.exists()


@pytest.mark.parametrize("level", ["root", "store"])
def test_directory_that_others_can_enter_is_not_used(tmp_path: Path, level: str) -> None:
    store = copies(tmp_path / "copies")
    path = write(store, "1-ab")
    (tmp_path / "copies" if level == "root" else path.parent).chmod(0o755)
    assert store.retrieve_local_state("1-ab") is None
    assert store.store_local_state("2-ab", 10, 0) is None
    assert path.exists()


@pytest.mark.parametrize("level", ["root", "store", "copy"])
def test_link_is_not_followed(tmp_path: Path, level: str) -> None:
    store = copies(tmp_path / "copies")
    path = write(store, "1-ab")
    place = {"root": tmp_path / "copies", "store": path.parent, "copy": path}[level]
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    assert store.retrieve_local_state("1-ab") is None


def test_disk_that_cannot_be_written_to_has_no_copies(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", Path("/proc/copies")):
        assert copies(root).store_local_state("1-ab", 10, 0) is None
        assert copies(root).retrieve_local_state("1-ab") is None


def test_options_say_where_copies_are(tmp_path: Path) -> None:
    def directory(
        recovery: str, storage: str, *, is_local: bool, default: str | None = "/spark"
    ) -> str | None:
        options = StorageOptions.parse({"localRecovery": recovery, "storage": storage})
        store = TaskLocalStateStore.from_options(options, "url", is_local, default)
        return store and str(Path(store._directory).parent)

    name = f"spark-statestore-local-{os.geteuid()}"
    assert directory("auto", "filesystem", is_local=False) == f"/spark/{name}"
    assert directory("auto", "filesystem", is_local=False, default=None) is None
    assert directory("auto", "filesystem", is_local=True) is None
    assert directory("/disk", "filesystem", is_local=True) == f"/disk/{name}"
    assert directory("off", "filesystem", is_local=False) is None
    assert directory("/disk", "memory", is_local=False) is None


def test_memory_of_a_container_has_no_copies() -> None:
    def has_copies(default: str, recovery: str = "auto") -> bool:
        options = StorageOptions.parse({"localRecovery": recovery})
        return TaskLocalStateStore.from_options(options, "url", False, default) is not None

    with open("/proc/mounts") as file:
        mounts = [line.split(" ") for line in file]
    in_memory = [place for _, place, kind, *_ in mounts if kind == "tmpfs" and os.path.isdir(place)]
    if not in_memory:
        pytest.skip("no tmpfs is mounted")
    assert not has_copies(f"{in_memory[0]}/spark")
    # A directory that the option names is the user's choice.
    assert has_copies("/", f"{in_memory[0]}/spark")
    assert has_copies(str(Path(__file__).parent))
