"""Files of this machine: how they appear, what they fall back to, what a listing shows."""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_statestore.checkpoint.files import LocalFileSystem, local
from tests.checkpoint.test_files import local_without


def shown(files: LocalFileSystem, directory: Path) -> set[str]:
    return {status.path.removeprefix(f"{directory}/") for status in files.list_files(str(directory))}


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were synced."""
    paths: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    return paths


def refusing(call: Callable[..., Any], number: int, refused: list[str]) -> Callable[..., Any]:
    """A system call that is refused for open files without a name."""

    def refuse(path: str, *args: Any, **options: Any) -> Any:
        unnamed = isinstance(args[0], int) and args[0] & os.O_TMPFILE == os.O_TMPFILE
        if unnamed or path.startswith("/proc/self/fd/"):
            refused.append(path)
            raise OSError(number, os.strerror(number), path)
        return call(path, *args, **options)

    return refuse


# How files appear


def test_a_new_file_gets_its_name_only_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_WRONLY))
    except OSError:
        pytest.skip("this file system has no unnamed files")
    link = os.link
    seen: list[list[bytes]] = []

    def look(*args: Any, **options: Any) -> None:
        seen.append([path.read_bytes() for path in tmp_path.iterdir()])
        link(*args, **options)

    monkeypatch.setattr(os, "link", look)
    for files in (LocalFileSystem(), local_without("_unnamed_files")):
        files.create(str(tmp_path / "file"), b"whole")
        (tmp_path / "file").unlink()
    assert seen == [[], [b"whole"]]


def test_files_are_for_their_owner_to_write_and_nobody_to_run(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        for files in (LocalFileSystem(), local_without("_unnamed_files")):
            for write in (files.create, files.replace):
                write(str(tmp_path / "file"), b"1")
                assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644
                (tmp_path / "file").unlink()
    finally:
        os.umask(mask)


@pytest.mark.parametrize("call", ["open", "link"])
def test_where_a_file_cannot_be_without_a_name_it_has_a_hidden_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    refused: list[str] = []
    number = errno.EOPNOTSUPP if call == "open" else errno.ENOENT
    monkeypatch.setattr(os, call, refusing(getattr(os, call), number, refused))
    files = LocalFileSystem()
    for name in ("a", "b"):
        files.create(str(tmp_path / name), name.encode())
        with pytest.raises(FileExistsError):
            files.create(str(tmp_path / name), b"other")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"a", "b": b"b"}
    # Once is enough to know.
    assert len(refused) == 1


@pytest.mark.parametrize("call", ["open", "link"])
def test_an_error_that_another_way_would_meet_too_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    refused: list[str] = []
    monkeypatch.setattr(os, call, refusing(getattr(os, call), errno.ENOSPC, refused))
    with pytest.raises(OSError, match="No space"):
        LocalFileSystem().create(str(tmp_path / "file"), b"1")
    assert list(tmp_path.iterdir()) == []


def test_links_that_are_not_supported_are_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def refuse(path: str, *_: object, **__: object) -> None:
        tried.append(path)
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "link", refuse)
    files = local_without("_unnamed_files")
    for name in ("a", "b"):
        files.create(str(tmp_path / name), b"1")
    assert len(tried) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_replacement_that_fails_leaves_nothing_hidden_behind(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    with pytest.raises(IsADirectoryError):
        LocalFileSystem().replace(str(tmp_path / "directory"), b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["directory"]


def test_a_file_that_cannot_be_closed_is_removed_all_the_same(tmp_path: Path) -> None:
    out = LocalFileSystem().open_output(str(tmp_path / "file"))
    os.close(out._file.fileno())
    out.abandon()
    assert list(tmp_path.iterdir()) == []


# Syncing


def test_a_name_that_a_link_gave_is_synced(tmp_path: Path, synced: list[str]) -> None:
    files = LocalFileSystem(fsync=True)
    files._unnamed_files = False
    files.create(str(tmp_path / "file"), b"1")
    assert synced[1:] == [str(tmp_path)]


def test_nothing_is_synced_twice_or_unasked(tmp_path: Path, synced: list[str]) -> None:
    out = LocalFileSystem().open_output(str(tmp_path / "unsynced"))
    out.write(b"1")
    out.close()
    assert synced == []
    files = LocalFileSystem(fsync=True)
    out = files.open_output(str(tmp_path / "synced"))
    out.close()
    synced.clear()
    out.close()
    files.make_directory(str(tmp_path))
    assert synced == []


# Directories and reading


def test_a_directory_that_another_makes_meanwhile_is_fine(tmp_path: Path) -> None:
    class Raced(LocalFileSystem):
        def make_directory(self, path: str, *, exist_ok: bool = True) -> None:
            super().make_directory(path, exist_ok=exist_ok)
            if path == str(tmp_path / "parent"):
                (tmp_path / "parent" / "child").mkdir()

    Raced().make_directory(str(tmp_path / "parent" / "child"))
    assert (tmp_path / "parent" / "child").is_dir()


def test_the_size_of_a_directory_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as raised:
        LocalFileSystem().size(str(tmp_path))
    assert raised.value.errno == errno.EISDIR
    assert raised.value.strerror == os.strerror(errno.EISDIR)
    assert raised.value.filename == str(tmp_path)


def test_a_read_that_gives_less_than_asked_for_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            assert size is not None
            return super().read(min(size, 3))

    (tmp_path / "file").write_bytes(b"0123456789")
    monkeypatch.setattr(local, "open", lambda path, *_, **__: Slow(path), raising=False)
    assert LocalFileSystem().read(str(tmp_path / "file"), 1, 8) == b"12345678"


def test_a_listing_follows_no_link_to_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert shown(LocalFileSystem(), tmp_path) == {"file", "loop"}


def test_what_vanishes_during_a_listing_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"1")
    # As a file is that vanished after its name was read.
    (tmp_path / "a" / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "b" / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "c" / "dangling").symlink_to(tmp_path / "nowhere")
    scandir = os.scandir
    scanned: list[str] = []

    def vanish(path: str) -> Any:
        scanned.append(path)
        if len(scanned) == 2:
            shutil.rmtree(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanish)
    found = shown(LocalFileSystem(), tmp_path)
    gone = scanned[1].removeprefix(f"{tmp_path}/")
    assert found == {f"{name}/file" for name in ("a", "b", "c") if name != gone}
