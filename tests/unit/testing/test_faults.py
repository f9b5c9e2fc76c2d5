"""Tests of the fault-injecting file system: effect of each fault, content after a crash, visibility."""

from __future__ import annotations

import contextlib
import doctest
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from spark_statestore.files import FsspecFileSystem
from spark_statestore.testing import FileSystemTests, faults
from spark_statestore.testing.faults import FaultInjectingFileSystem
from spark_statestore.testing.faults_disk import Durability
from spark_statestore.testing.faults_plan import CrashedError, Fault


@pytest.fixture(params=["memory", "local"])
def wrapped(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    if request.param == "memory":
        return None
    return DirFileSystem(path=str(tmp_path), fs=LocalFileSystem())


def disk(wrapped: object = None, **options: object) -> FaultInjectingFileSystem:
    return FaultInjectingFileSystem(wrapped, durability="synced", **options)


def crash(fs: FaultInjectingFileSystem) -> None:
    """End the process and the machine, and start again."""
    fs.crash()
    fs.restart()


def test_docstring_example_runs() -> None:
    results = doctest.testmod(faults)
    assert results.attempted > 10
    assert not results.failed


class TestFilesWithoutFaults(FileSystemTests):
    opens_exclusively = False

    @pytest.fixture
    def files(self, wrapped: object) -> FsspecFileSystem:
        return FsspecFileSystem(FaultInjectingFileSystem(wrapped), "faulty")

    @pytest.fixture
    def directory(self) -> str:
        return "/query"


def test_calls_are_counted_and_logged() -> None:
    fs = FaultInjectingFileSystem()
    fs.inject(Fault("fail", at=3))
    with fs.open("a", "wb") as file:
        file.write(b"1")
        with pytest.raises(OSError, match="fail at call 3 flush a"):
            file.flush()
        file.sync()
    fs.exists("a")
    fs.mkdir("d")
    fs.rmdir("d")
    with fs.open("a") as file:
        file.read()
    logged = "1 open a, 2 write a, 3 flush a: fail, 4 sync a, 5 close a, 6 info a, 7 mkdir d, 8 rmdir d"
    assert ", ".join(map(str, fs.calls)) == f"{logged}, 9 open a, 10 read a"
    fs.inject()
    assert fs.calls == []


@pytest.mark.parametrize(
    ("kind", "durability", "content"),
    [
        ("fail", "synced", None),
        ("fail", "finished", None),
        ("fail_after", "synced", b"1234"),
        ("fail_after", "finished", b"1234"),
        ("tear", "synced", b"12"),
        # An object is whole or absent.
        ("tear", "finished", None),
    ],
)
def test_fault_of_a_write_leaves_nothing_a_part_or_all(
    wrapped: object, kind: Any, durability: Durability, content: bytes | None
) -> None:
    fs = FaultInjectingFileSystem(wrapped, durability=durability)
    fs.inject(Fault(kind, at=1))
    with pytest.raises(OSError, match=r"injected fault: .* call 1 pipe_file a"):
        fs.pipe_file("a", b"1234", mode="create")
    assert (fs.cat_file("a") if fs.exists("a") else None) == content


@pytest.mark.parametrize(("kind", "exists"), [("fail", True), ("fail_after", False), ("tear", True)])
def test_fault_of_a_removal_keeps_the_file_unless_it_is_after(kind: Any, exists: bool) -> None:
    fs = FaultInjectingFileSystem()
    fs.pipe_file("a", b"1")
    fs.inject(Fault(kind, at=1))
    with pytest.raises(OSError, match="injected fault"):
        fs.rm_file("a")
    assert fs.exists("a") is exists


def test_fail_after_keeps_the_error_of_the_call() -> None:
    fs = FaultInjectingFileSystem()
    fs.inject(Fault("fail_after", at=1))
    with pytest.raises(FileNotFoundError):
        fs.cat_file("missing")


def test_tear_of_an_open_file_writes_a_part(wrapped: object) -> None:
    fs = FaultInjectingFileSystem(wrapped)
    fs.inject(Fault("tear", at=3))
    file = fs.open("a", "wb")
    file.write(b"12")
    with pytest.raises(OSError, match="tear"):
        file.write(b"3456")
    file.close()
    assert fs.cat_file("a") == b"1234"


def test_tear_of_a_recursive_removal_removes_a_part(wrapped: object) -> None:
    fs = FaultInjectingFileSystem(wrapped)
    fs.makedirs("d")
    for name in "abcd":
        fs.pipe_file(f"d/{name}", b"")
    fs.inject(Fault("tear", at=1))
    with pytest.raises(OSError, match="tear"):
        fs.rm("d", recursive=True)
    assert len(fs.find("d")) == 2


def test_open_file_is_visible_on_a_disk_only() -> None:
    for fs, content in ((FaultInjectingFileSystem(), None), (disk(), b"12")):
        file = fs.open("a", "wb")
        file.write(b"12")
        assert (fs.cat_file("a") if fs.exists("a") else None) == content
        file.close()
        assert fs.cat_file("a") == b"12"
        with pytest.raises(FileExistsError):
            fs.open("a", "xb")
        fs.cp_file("a", "b")
        assert fs.cat_file("b") == b"12"


def test_lose_unsynced_restores_the_synced_content(wrapped: object) -> None:
    fs = disk(wrapped)
    with fs.open("synced", "wb") as file:
        file.write(b"12")
        file.sync()
        file.write(b"34")
    fs.pipe_file("never", b"1")
    with fs.open("moved", "wb") as file:
        file.write(b"5")
        file.sync()
    fs.mv("moved", "target")
    fs.pipe_file("unsynced", b"6")
    fs.mv("unsynced", "elsewhere")
    crash(fs)
    assert {name: fs.cat_file(name) for name in fs.find("")} == {"synced": b"12", "target": b"5"}


@pytest.mark.parametrize("empty_names", [False, True])
def test_lose_unsynced_restores_a_replaced_file_and_may_keep_names(empty_names: bool) -> None:
    fs = disk(empty_names=empty_names)
    with fs.open("a", "wb") as file:
        file.write(b"old")
        file.sync()
    for name in ("a", "b", "c"):
        fs.pipe_file(name, b"new")
    fs.rm_file("b")
    crash(fs)
    expected = {"a": b"old"} | ({"c": b""} if empty_names else {})
    assert {name: fs.cat_file(name) for name in fs.find("")} == expected


def test_lose_unsynced_keeps_finished_objects() -> None:
    fs = FaultInjectingFileSystem()
    fs.pipe_file("finished", b"1")
    file = fs.open("open", "wb")
    file.write(b"2")
    crash(fs)
    assert fs.find("") == ["finished"]


def test_calls_after_a_crash_fail_until_restart() -> None:
    fs = FaultInjectingFileSystem()
    fs.pipe_file("a", b"1")
    reading, writing = fs.open("a"), fs.open("b", "wb")
    fs.inject(Fault("lose_unsynced", at=2))
    fs.cat_file("a")
    with pytest.raises(CrashedError, match="rm_file of a fails"):
        fs.rm_file("a")
    for call in (lambda: fs.cat_file("a"), lambda: fs.exists("a"), reading.read, lambda: writing.write(b"2")):
        # It is no `Exception`, which the code under test may handle.
        with pytest.raises(CrashedError, match="restart"), contextlib.suppress(Exception):
            call()
    fs.restart()
    assert fs.cat_file("a") == b"1"
    for stale in (reading.read, lambda: writing.write(b"2"), writing.close):
        with pytest.raises(CrashedError, match="opened before a crash"):
            stale()
    assert fs.find("") == ["a"]


def test_kill_keeps_unsynced_content_until_a_crash() -> None:
    fs = disk()
    fs.inject(Fault("kill", at=2))
    fs.pipe_file("a", b"1")
    with pytest.raises(CrashedError, match="rm_file of a fails"):
        fs.rm_file("a")
    fs.restart()
    assert fs.cat_file("a") == b"1"
    crash(fs)
    assert not fs.exists("a")


def test_discarded_file_is_not_published() -> None:
    fs = FaultInjectingFileSystem()
    fs.open("a", "wb").write(b"1")
    discarded = fs.open("b", "wb")
    discarded.write(b"1")
    discarded.discard()
    discarded.close()
    gc.collect()
    assert fs.find("") == []


def test_predicates_raise_injected_errors() -> None:
    fs = FaultInjectingFileSystem()
    fs.inject(*(Fault("fail", at=n) for n in (1, 2, 3)))
    for question in (fs.exists, fs.isdir, fs.isfile):
        with pytest.raises(OSError, match="fail at call"):
            question("a")


def test_delay_blocks_only_its_call() -> None:
    fs = FaultInjectingFileSystem()
    fs.inject(Fault("delay", at=1, seconds=1.0))
    started = time.monotonic()
    slow = threading.Thread(target=fs.pipe_file, args=("a", b"slow"))
    slow.start()
    while not fs.calls:
        time.sleep(0.001)
    fs.pipe_file("a", b"fast")
    assert time.monotonic() - started < 1.0
    slow.join()
    assert time.monotonic() - started >= 1.0
    assert fs.cat_file("a") == b"slow"


def test_run_calls_a_function_between_two_calls() -> None:
    fs = FaultInjectingFileSystem()
    fs.inject(Fault("run", at=2, function=lambda: fs.pipe_file("a", b"other", mode="create")))
    assert not fs.exists("a")
    with pytest.raises(FileExistsError):
        fs.pipe_file("a", b"mine", mode="create")
    assert [call.operation for call in fs.calls] == ["info", "pipe_file", "pipe_file"]


def test_concurrent_calls_are_counted_and_creates_have_one_winner() -> None:
    fs = FaultInjectingFileSystem()
    created_files: list[int] = []

    def make(number: int) -> None:
        for file in range(50):
            with contextlib.suppress(FileExistsError):
                fs.pipe_file(str(file), b"%d" % number, mode="create")
                created_files.append(file)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make, range(4)))
    assert sorted(created_files) == list(range(50))
    assert sorted(call.number for call in fs.calls) == list(range(1, 201))


def test_file_systems_are_shared_by_name() -> None:
    fs, second = FaultInjectingFileSystem(), FaultInjectingFileSystem()
    with fsspec.open(fs.url("d/a"), "wb") as file:
        file.write(b"1")
    assert fs.find("") == [fs.url("d/a").removeprefix("faulty://")]
    assert second.find("") == []
    assert not [path for path in fsspec.filesystem("memory").find("/") if path.endswith("/d/a")]


@pytest.mark.parametrize(
    "arguments", [("never", 1), ("fail", 0), ("run", 1)], ids=["kind", "number", "nothing-to-run"]
)
def test_invalid_fault_is_refused(arguments: tuple[str, int]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Fault(*arguments)
