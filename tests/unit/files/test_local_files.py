"""Tests of local files: atomic creation, fallbacks, fsync, preallocation and listings."""

from __future__ import annotations

import errno
import gc
import io
import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_statestore.files import LocalFileSystem, local
from spark_statestore.testing import FileSystemTests
from tests.support.trees import files_below
from tests.unit.files.test_files import local_without


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were synced."""
    paths: list[str] = []
    fsync = os.fsync

    def record(fd: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    return paths


def refusing(
    call: Callable[..., Any], number: int, refused: list[str], *, always: bool = False
) -> Callable[..., Any]:
    """A system call that is refused for open files without a name, or always."""

    def refuse(path: str, *args: Any, **options: Any) -> Any:
        unnamed = isinstance(args[0], int) and args[0] & os.O_TMPFILE == os.O_TMPFILE
        if always or unnamed or path.startswith("/proc/self/fd/"):
            refused.append(path)
            raise OSError(number, os.strerror(number), path)
        return call(path, *args, **options)

    return refuse


# How files appear


@pytest.mark.usefixtures("unnamed")
def test_create_links_the_name_after_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link
    contents: list[list[bytes]] = []

    def look(*args: Any, **options: Any) -> None:
        contents.append([path.read_bytes() for path in tmp_path.iterdir()])
        link(*args, **options)

    monkeypatch.setattr(os, "link", look)
    for files in (LocalFileSystem(), local_without("_unnamed_files")):
        files.create(str(tmp_path / "file"), b"whole")
        (tmp_path / "file").unlink()
    assert contents == [[], [b"whole"]]


def test_created_files_have_mode_0644(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        for files in (LocalFileSystem(), local_without("_unnamed_files")):
            for write in (files.create, files.replace):
                write(str(tmp_path / "file"), b"1")
                assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644
                (tmp_path / "file").unlink()
    finally:
        os.umask(mask)


@pytest.mark.parametrize(
    ("call", "number", "attempts"),
    [("open", errno.EOPNOTSUPP, 1), ("link", errno.ENOENT, 1), ("link", errno.EOPNOTSUPP, 2)],
    ids=["open", "link of an unnamed file", "every link"],
)
def test_create_falls_back_to_a_staging_file_and_to_writing_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, attempts: int
) -> None:
    refused: list[str] = []
    monkeypatch.setattr(os, call, refusing(getattr(os, call), number, refused, always=attempts > 1))
    files = LocalFileSystem()
    for name in ("a", "b"):
        files.create(str(tmp_path / name), name.encode())
        with pytest.raises(FileExistsError):
            files.create(str(tmp_path / name), b"other")
    assert files_below(tmp_path) == {"a": b"a", "b": b"b"}
    # Once is enough to know.
    assert len(refused) == attempts


@pytest.mark.parametrize("call", ["open", "link"])
def test_create_raises_errors_that_a_fallback_would_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(os, call, refusing(getattr(os, call), errno.ENOSPC, []))
    with pytest.raises(OSError, match="No space"):
        LocalFileSystem().create(str(tmp_path / "file"), b"1")
    assert files_below(tmp_path) == {}


def test_missing_links_are_remembered_for_each_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_links, without = tmp_path / "with", tmp_path / "without"
    for directory in (with_links, without):
        directory.mkdir()
    link, status, opened = os.link, os.stat, os.open
    linked: list[str] = []

    def is_without(path: Any) -> bool:
        return str(path).startswith(str(without))

    def refuse(source: str, to: str, **options: Any) -> None:
        if is_without(to):
            raise OSError(errno.EOPNOTSUPP, "not supported")
        link(source, to, **options)
        linked.append(to)

    def open_named(path: str, flags: int, *mode: int) -> int:
        if is_without(path) and flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "open", open_named)
    monkeypatch.setattr(local, "_device_of", lambda path: -1 if is_without(path) else status(path).st_dev)
    files = LocalFileSystem()
    for name in ("a", "b"):
        files.create(f"{without}/{name}", b"1")
        files.prepare(str(without))
    assert caplog.text.count(f"the file system of {without} has no hard links") == 1
    assert linked == []
    files.create(f"{with_links}/file", b"1")
    assert linked == [f"{with_links}/file"]
    assert len(caplog.records) == 1


def test_failed_replace_leaves_no_staging_file(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    with pytest.raises(IsADirectoryError):
        LocalFileSystem().replace(str(tmp_path / "directory"), b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["directory"]


def test_abandon_removes_a_file_that_fails_to_close(tmp_path: Path) -> None:
    out = LocalFileSystem().open_output(str(tmp_path / "file"))
    os.close(out._file.fileno())
    out.abandon()
    assert list(tmp_path.iterdir()) == []


# Syncing


def write_output(files: LocalFileSystem, path: str) -> None:
    out = files.open_output(path)
    out.write(b"1")
    out.close()
    out.close()


@pytest.mark.parametrize("write", ["create", "create of a staging file", "replace", "open_output"])
def test_file_and_its_name_are_synced_once_with_fsync(tmp_path: Path, synced: list[str], write: str) -> None:
    for fsync in (False, True):
        files = LocalFileSystem(fsync=fsync)
        if write == "open_output":
            write_output(files, str(tmp_path / f"{fsync}"))
        elif write == "replace":
            files.replace(str(tmp_path / f"{fsync}"), b"1")
        else:
            files._unnamed_files = write == "create"
            files.create(str(tmp_path / f"{fsync}"), b"1")
        assert len(synced) == 2 * fsync
    assert synced[0] != synced[1] == str(tmp_path)


def test_make_directory_syncs_the_parents_of_an_existing_directory(tmp_path: Path, synced: list[str]) -> None:
    """The process that created it may have been killed before the directory was synced."""
    directory = tmp_path / "a" / "b"
    directory.mkdir(parents=True)
    LocalFileSystem().make_directory(str(directory))
    assert synced == []
    files = LocalFileSystem(fsync=True)
    files.make_directory(str(directory))
    assert synced[:3] == [str(tmp_path / "a"), str(tmp_path), str(tmp_path.parent)]
    assert os.path.ismount(synced[-1])
    # What is above is sure from then on.
    synced.clear()
    files.make_directory(str(directory.parent / "c"))
    files.make_directory(str(directory))
    assert synced == [str(directory.parent), str(directory.parent)]


def test_prepared_directory_is_synced_once(tmp_path: Path, synced: list[str]) -> None:
    files = LocalFileSystem(fsync=True)
    files.make_directory(str(tmp_path / "first"))
    synced.clear()
    for _ in range(2):
        files.prepare(str(tmp_path / "next"))
        files.make_directory(str(tmp_path / "next"))
        assert synced == [str(tmp_path)]
        synced.clear()
        # It is another one then, which may have the same name.
        (tmp_path / "next").rmdir()


def test_forgotten_directories_are_synced_again(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_MAX_REMEMBERED", 1)
    files = LocalFileSystem(fsync=True)
    for name in ("first", "second"):
        files.prepare(str(tmp_path / name))
    for name in ("first", "second"):
        synced.clear()
        files.make_directory(str(tmp_path / name))
        assert (str(tmp_path) in synced) is (name == "first")


def test_make_durable_syncs_a_file_of_another_process(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "file").write_bytes(b"1")
    LocalFileSystem().make_durable(str(tmp_path / "file"))
    LocalFileSystem().sync_directory(str(tmp_path))
    assert synced == []
    LocalFileSystem(fsync=True).make_durable(str(tmp_path / "file"))
    assert synced == [str(tmp_path / "file"), str(tmp_path)]
    LocalFileSystem(fsync=True).sync_directory(str(tmp_path))
    assert synced[2:] == [str(tmp_path)]


def test_delete_directory_syncs_the_removal(tmp_path: Path, synced: list[str]) -> None:
    for files, recursive in ((LocalFileSystem(), True), (LocalFileSystem(fsync=True), False)):
        (tmp_path / "removed").mkdir()
        files.delete_directory(str(tmp_path / "removed"), recursive=recursive)
    assert synced == [str(tmp_path)]


# Directories and reading


def test_make_directory_tolerates_a_concurrent_maker(tmp_path: Path) -> None:
    class Raced(LocalFileSystem):
        def make_directory(self, path: str) -> None:
            super().make_directory(path)
            if path == str(tmp_path / "parent"):
                (tmp_path / "parent" / "child").mkdir()

    Raced().make_directory(str(tmp_path / "parent" / "child"))
    assert (tmp_path / "parent" / "child").is_dir()


def test_read_continues_after_a_short_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            assert size is not None
            return super().read(min(size, 3))

    (tmp_path / "file").write_bytes(b"0123456789")
    monkeypatch.setattr(local, "open", lambda path, *_, **__: Slow(path), raising=False)
    assert LocalFileSystem().read(str(tmp_path / "file"), 1, 8) == b"12345678"


def test_list_files_does_not_follow_directory_links(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "loop").symlink_to(tmp_path)
    names = FileSystemTests.names(LocalFileSystem(), str(tmp_path))
    assert names == ["file", "loop"]


def test_list_files_omits_concurrently_deleted_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"1")
        # As a file is that vanished after its name was read.
        (tmp_path / name / "dangling").symlink_to(tmp_path / "nowhere")
    scandir = os.scandir
    scanned: list[str] = []

    def vanish(path: str) -> Any:
        scanned.append(path)
        if len(scanned) == 2:
            shutil.rmtree(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanish)
    names = FileSystemTests.names(LocalFileSystem(), str(tmp_path))
    gone = scanned[1].removeprefix(f"{tmp_path}/")
    assert names == [f"{name}/file" for name in ("a", "b", "c") if name != gone]


# What is done ahead


@pytest.fixture
def unnamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The descriptors of files without a name that were opened."""
    opened: list[int] = []
    really = os.open

    def record(path: str, flags: int, mode: int = 0o777, **options: Any) -> int:
        fd = really(path, flags, mode, **options)
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            opened.append(fd)
        return fd

    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_WRONLY))
    except OSError:
        pytest.skip("this file system has no unnamed files")
    monkeypatch.setattr(os, "open", record)
    return opened


def is_open(fd: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")


def test_preallocated_file_is_invisible_and_used_next(tmp_path: Path, unnamed: list[int]) -> None:
    files = LocalFileSystem()
    directory = tmp_path / "a" / "chk-2"
    files.prepare(str(directory))
    files.prepare(str(directory))
    assert directory.is_dir()
    assert (len(unnamed), files_below(tmp_path)) == (1, {})
    (tmp_path / "b").mkdir()
    files.create(str(tmp_path / "b" / "first"), b"one")
    assert (len(unnamed), is_open(unnamed[0])) == (1, False)
    files.create(str(directory / "second"), b"two")
    assert len(unnamed) == 2
    assert files_below(tmp_path) == {"b/first": b"one", "a/chk-2/second": b"two"}
    # As that of a file that was not preallocated.
    assert (tmp_path / "b" / "first").stat().st_mode == (directory / "second").stat().st_mode


def test_preallocated_file_is_closed_with_its_file_system(tmp_path: Path, unnamed: list[int]) -> None:
    files = LocalFileSystem()
    files.prepare(str(tmp_path))
    assert is_open(unnamed[0])
    del files
    gc.collect()
    assert not is_open(unnamed[0])


def test_preallocated_files_are_limited_per_process(
    tmp_path: Path, unnamed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_permits", threading.BoundedSemaphore(2))
    many = [LocalFileSystem() for _ in range(3)]
    for files in many:
        files.prepare(str(tmp_path))
    assert len(unnamed) == 2
    for number, files in enumerate(many):
        files.create(str(tmp_path / f"{number}"), b"x")
    assert files_below(tmp_path) == {"0": b"x", "1": b"x", "2": b"x"}
    # There is room for others again.
    for files in many[:2]:
        files.prepare(str(tmp_path))
    assert len(unnamed) == 5


def test_preallocated_file_of_another_device_is_not_used(
    tmp_path: Path, unnamed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next one is prepared as ever: a process may have queries on several disks."""
    link = os.link
    refused: list[str] = []

    def across(source: str, path: str, **options: Any) -> None:
        if not refused:
            refused.append(source)
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)
        link(source, path, **options)

    files = LocalFileSystem()
    files.prepare(str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", across)
        files.create(str(tmp_path / "a"), b"one")
    assert len(unnamed) == 2
    files.prepare(str(tmp_path))
    assert len(unnamed) == 3
    files.create(str(tmp_path / "b"), b"two")
    assert len(unnamed) == 3
    assert files_below(tmp_path) == {"a": b"one", "b": b"two"}


def test_preallocated_file_is_not_used_after_a_fork(
    tmp_path: Path, unnamed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = LocalFileSystem()
    files.prepare(str(tmp_path))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    files.create(str(tmp_path / "a"), b"mine")
    assert len(unnamed) == 2
    assert (tmp_path / "a").read_bytes() == b"mine"


def test_preallocated_file_of_a_removed_directory_fails_once(tmp_path: Path, unnamed: list[int]) -> None:
    files = LocalFileSystem()
    directory = tmp_path / "chk-1"
    files.prepare(str(directory))
    directory.rmdir()
    with pytest.raises(FileNotFoundError):
        files.create(str(directory / "a"), b"x")
    files.make_directory(str(directory))
    files.create(str(directory / "a"), b"x")
    assert len(unnamed) == 2
    assert (directory / "a").read_bytes() == b"x"
