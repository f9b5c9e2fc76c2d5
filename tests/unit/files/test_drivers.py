"""Tests of file systems through fsspec: differences between drivers."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem as FsspecLocal
from fsspec.implementations.memory import MemoryFileSystem as FsspecMemory
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from spark_statestore.files import FsspecFileSystem, fsspec_driver
from tests.support.drivers.plain_driver import PlainDriver, RenamingDriver


class Upload(AbstractBufferedFile):
    """Shows its object when it is closed, as files of object stores do."""

    def _initiate_upload(self) -> None:
        pass

    def _upload_chunk(self, final: bool = False) -> bool:
        if final:
            self.fs.pipe_file(self.path, self.buffer.getvalue())
        return final

    def discard(self) -> None:
        self.fs.discarded.append(self.path)


class Memory(FsspecMemory):
    """Files of one driver object, rather than of the process."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.store = {}


class Objects(Memory):
    """A driver of an object store, which has several names."""

    protocol = ("s3", "s3a")

    def __init__(self) -> None:
        super().__init__()
        self.discarded: list[str] = []
        self.calls: list[str] = []

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return Upload(self, path, mode) if mode == "wb" else super()._open(path, mode, **options)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self.calls.append(f"put {mode}")
        FsspecMemory._open(self, path, "xb" if mode == "create" else "wb", data=value)

    def mv(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError


class OldDriver(Memory):
    """A driver from before fsspec knew modes of `pipe_file`."""

    def pipe_file(self, path: str, value: bytes) -> None:  # type: ignore[override]
        super().pipe_file(path, value)


class CheckingDriver(Memory):
    """A driver with fsspec's own `pipe_file`, which checks for the file before it writes."""

    pipe_file = AbstractFileSystem.pipe_file


class RefusedRequestError(Exception):
    """The answer to a conditional request as botocore has it."""

    response = {"Error": {"Code": "PreconditionFailed"}, "ResponseMetadata": {"HTTPStatusCode": 412}}  # noqa: RUF012


class MinioDriver(Memory):
    """A driver that misreads a service's answer to a conditional request, as s3fs with MinIO."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        try:
            super().pipe_file(path, value, mode, **options)
        except FileExistsError:
            raise OSError(errno.EINVAL, "a pre-condition did not hold") from RefusedRequestError()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files whose descriptors were synced."""
    names: list[str] = []
    fsync = os.fsync

    def record(fd: int) -> None:
        names.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    return names


def test_files_are_synced_once_with_fsync(tmp_path: Path, synced: list[str]) -> None:
    for fsync in (False, True):
        files = FsspecFileSystem(FsspecLocal(), "local", fsync=fsync)
        files.create(f"{tmp_path}/created-{fsync}", b"1")
        files.replace(f"{tmp_path}/replaced", b"1")
        out = files.open_output(f"{tmp_path}/written-{fsync}")
        out.write(b"1")
        out.close()
        out.close()
        assert len(synced) == 3 * fsync
    created, staged, replaced = synced
    assert (created, replaced) == ("created-True", "written-True")
    assert staged.startswith(".inprogress.")


class Files(Memory):
    """A driver whose written files have few methods: these, and those of `more`."""

    def __init__(self, **more: Callable[[], None]) -> None:
        super().__init__()
        self.more = more

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        file = super()._open(path, mode, **options)
        if mode == "rb":
            return file
        return SimpleNamespace(
            write=file.write, flush=file.flush, close=file.close, closed=False, **self.more
        )


def test_fsync_uses_the_sync_method_of_the_driver() -> None:
    synced: list[int] = []
    driver = Files(sync=lambda: synced.append(1))
    FsspecFileSystem(driver, "memory", fsync=True).create("/drivers/synced", b"1")
    assert synced == [1]


def test_files_without_optional_methods_are_finished_or_abandoned() -> None:
    files = FsspecFileSystem(Files(), "memory", fsync=True)
    files.create("/drivers/bare", b"1")
    assert files.read("/drivers/bare") == b"1"
    files.open_output("/drivers/abandoned").abandon()
    assert not files.exists("/drivers/abandoned")


def test_create_is_one_put_on_object_stores() -> None:
    objects = Objects()
    # Objects need no syncing.
    files = FsspecFileSystem(objects, "s3", fsync=True)
    files.create("/b/object", b"one")
    files.replace("/b/object", b"two")
    assert objects.calls == ["put create", "put overwrite"]
    assert files.read("/b/object") == b"two"
    with pytest.raises(FileExistsError):
        files.create("/b/object", b"three")
    assert [status.path for status in files.list_files("/b")] == ["/b/object"]


class Buckets(Objects):
    """A driver that removes no directory but a bucket."""

    def rmdir(self, path: str) -> None:
        raise FileExistsError(f"{path} is no bucket")


@pytest.mark.parametrize(("driver", "scheme"), [(Memory, "memory"), (Buckets, "s3")])
def test_delete_directory_does_not_expand_patterns(driver: type[Memory], scheme: str) -> None:
    fs = driver()
    files = FsspecFileSystem(fs, scheme)
    paths = {f"/b/{name}/below/_metadata" for name in ("run[1]", "run1", "ru*", "run?")}
    for path in paths:
        files.make_directory(path.removesuffix("/_metadata"))
        files.replace(path, b"old")
        files.replace(path, b"new")
    for name in ("run[1]", "ru*", "run?"):
        files.delete_directory(f"/b/{name}", recursive=True)
        paths.remove(f"/b/{name}/below/_metadata")
        assert set(fs.find("/b")) == paths
    assert files.read("/b/run1/below/_metadata") == b"new"


def test_abandoned_upload_never_appears() -> None:
    objects = Objects()
    out = FsspecFileSystem(objects, "s3").open_output("/b/object")
    out.write(b"1")
    out.abandon()
    assert objects.discarded == ["/b/object"]
    del out
    gc.collect()
    assert not objects.exists("/b/object")


@pytest.mark.parametrize(
    ("driver", "warnings"), [(Memory, 0), (MinioDriver, 0), (OldDriver, 1), (CheckingDriver, 1)]
)
@pytest.mark.parametrize("wraps", [False, True], ids=["driver", "wrapping driver"])
def test_create_refuses_an_existing_file_or_logs_once_that_it_cannot(
    driver: type[Memory], warnings: int, wraps: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fsspec_driver.warn_of_inexclusive_create.cache_clear()
    below = driver()
    fs = DirFileSystem("/drivers", below, skip_instance_cache=True) if wraps else below
    for _ in range(2):
        files = FsspecFileSystem(fs, "memory")
    files.create("file", b"one")
    with pytest.raises(FileExistsError):
        files.create("file", b"two")
    assert files.read("file") == b"one"
    assert len(caplog.records) == warnings
    if warnings:
        assert f"{type(fs).__name__} of memory:// cannot create files exclusively" in caplog.text


class LocalDriver(FsspecLocal):
    """Files of this machine, whose driver object is that of one test."""

    cachable = False


@pytest.mark.parametrize("removes", [True, False])
def test_failed_replace_raises_its_cause_and_removes_the_staging_file(tmp_path: Path, removes: bool) -> None:
    class Driver(LocalDriver):
        def mv(self, path1: str, path2: str, **_: Any) -> None:
            assert Path(path1).parent == Path(path2).parent == tmp_path
            raise PermissionError("not here")

        def rm_file(self, path: str) -> None:
            if not removes:
                raise PermissionError("not there")
            super().rm_file(path)

    with pytest.raises(PermissionError, match="not here"):
        FsspecFileSystem(Driver(), "local").replace(str(tmp_path / "file"), b"1")
    assert len(list(tmp_path.iterdir())) == (0 if removes else 1)


class NumberedError(OSError):
    """An error of SMB's client, which has a number and is of no class of Python's."""

    def __init__(self, number: int) -> None:
        super().__init__(f"[Error {number}] NtStatus 0xc0000034")
        self.errno = number
        self.status = 0xC0000034


def missing_because_of(cause: Exception) -> FileNotFoundError:
    error = FileNotFoundError("/file")
    error.__cause__ = cause
    return error


def library_error(name: str) -> Exception:
    return type(name, (Exception,), {})()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NumberedError(errno.ENOENT), FileNotFoundError),
        (NumberedError(errno.EACCES), PermissionError),
        (NumberedError(errno.EIO), OSError),
        (TypeError("unsupported credentials"), TypeError),
        (missing_because_of(KeyError("/file")), FileNotFoundError),
        (missing_because_of(library_error("ResourceExistsError")), OSError),
        (missing_because_of(library_error("ResourceNotFoundError")), FileNotFoundError),
        (missing_because_of(NumberedError(errno.ENOENT)), FileNotFoundError),
        (missing_because_of(OSError("HDFS file does not exist: /file")), FileNotFoundError),
        (missing_because_of(OSError("HDFS connection failed")), OSError),
        (missing_because_of(library_error("ReplyError")), OSError),
        (missing_because_of(ConnectionResetError("lost")), OSError),
        (missing_because_of(PermissionError("denied")), OSError),
    ],
    ids=lambda value: repr(value.__cause__ or value) if isinstance(value, Exception) else value.__name__,
)
def test_driver_error_is_absence_only_if_the_file_is_missing(error: Exception, kind: type[Exception]) -> None:
    class Driver(PlainDriver):
        def info(self, path: str, **_: Any) -> dict[str, Any]:
            raise error

        def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
            raise error

    files = FsspecFileSystem(Driver(), "plain")
    asks: list[Callable[[str], object]] = [files.size, files.list_directory]
    if kind is FileNotFoundError:
        assert not files.exists("/file")
        assert list(files.list_files("/directory")) == []
    else:
        asks += [files.exists, files.is_directory, lambda path: list(files.list_files(path))]
    for ask in asks:
        with pytest.raises(kind) as raised:
            ask("/file")
        assert isinstance(raised.value, FileNotFoundError) == (kind is FileNotFoundError)


@pytest.mark.parametrize("removals", [1, 100])
def test_directory_is_listed_again_if_a_file_is_removed_meanwhile(removals: int) -> None:
    class Driver(PlainDriver):
        """Asks for each name of a listing, as the driver of SMB does."""

        removed = 0

        def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
            if path == "/d" and self.removed < removals:
                self.removed += 1
                raise FileNotFoundError(f"{path}/removed")
            return super().ls(path, detail, **options)

    driver = Driver()
    files = FsspecFileSystem(driver, "plain")
    files.make_directory("/d")
    files.create("/d/file", b"1")
    if removals == 1:
        assert [status.path for status in files.list_files("/d")] == ["/d/file"]
    else:
        with pytest.raises(OSError, match="plain:///d exists and cannot be listed"):
            list(files.list_files("/d"))


def test_cached_listing_is_not_used() -> None:
    class Driver(PlainDriver):
        """Looks for files in cached listings of their directories, as the driver of FTP does."""

        def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
            if path in self.dircache:
                return self.dircache[path]
            listing = self.dircache[path] = super().ls(path, detail, **options)
            return listing

        info = AbstractFileSystem.info

    driver = Driver()
    files = FsspecFileSystem(driver, "plain")
    files.make_directory("/d")
    assert list(files.list_files("/d")) == []
    # By another process.
    driver._store.pipe_file("/d/file", b"1")
    assert files.exists("/d/file")
    assert [status.path for status in files.list_files("/d")] == ["/d/file"]


@pytest.mark.parametrize(("driver", "replaced"), [(PlainDriver, 1), (RenamingDriver, 2)])
def test_replace_in_steps_is_logged_once(
    driver: type[PlainDriver], replaced: int, caplog: pytest.LogCaptureFixture
) -> None:
    fsspec_driver.warn_of_replace_in_steps.cache_clear()
    files = FsspecFileSystem(driver(), "plain")
    caplog.clear()
    for number in range(3):
        files.replace("/file", b"1")
        assert len(caplog.records) == (1 if number + 1 >= replaced else 0)
    assert f"{driver.__name__} of plain:// cannot replace a file in one step" in caplog.text
