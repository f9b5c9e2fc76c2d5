"""Tests of file systems through fsspec: differences between drivers."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem as FsspecLocal
from fsspec.implementations.memory import MemoryFileSystem as FsspecMemory
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from spark_statestore.files import FileSystem, FsspecFileSystem, fsspec_driver, open_file_system, urls
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


class ResourceExistsError(Exception):
    """The error of Azure's client for an existing blob."""


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


class Synced:
    """A file that knows how to be synced, and has no descriptor."""

    def __init__(self, file: Any, synced: list[str]) -> None:
        self.file = file
        self.sync = lambda: synced.append(file.path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class Bare:
    """A file that can be written, and no more."""

    def __init__(self, file: Any) -> None:
        self.write, self.flush, self.close, self.closed = file.write, file.flush, file.close, False


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


def write_in_every_way(files: FsspecFileSystem, directory: Path) -> None:
    files.create(str(directory / "created"), b"1")
    files.replace(str(directory / "replaced"), b"1")
    out = files.open_output(str(directory / "written"))
    out.write(b"1")
    out.close()


def test_files_are_synced_once_with_fsync(tmp_path: Path, synced: list[str]) -> None:
    write_in_every_way(FsspecFileSystem(FsspecLocal(), "local"), tmp_path)
    assert synced == []
    files = FsspecFileSystem(FsspecLocal(), "local", fsync=True)
    (tmp_path / "created").unlink()
    write_in_every_way(files, tmp_path)
    created, staged, written = synced
    assert (created, written) == ("created", "written")
    assert staged.startswith(".inprogress.")
    out = files.open_output(str(tmp_path / "twice"))
    out.close()
    out.close()
    assert synced[3:] == ["twice"]


def test_fsync_uses_the_sync_method_of_the_driver() -> None:
    synced: list[str] = []

    class Driver(Memory):
        def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
            file = super()._open(path, mode, **options)
            return Synced(file, synced) if mode != "rb" else file

    FsspecFileSystem(Driver(), "memory", fsync=True).create("/drivers/synced", b"1")
    assert synced == ["/drivers/synced"]


def test_files_without_optional_methods_are_finished_or_abandoned() -> None:
    class Driver(Memory):
        def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
            file = super()._open(path, mode, **options)
            return Bare(file) if mode != "rb" else file

    files = FsspecFileSystem(Driver(), "memory", fsync=True)
    files.create("/drivers/bare", b"1")
    assert files.read("/drivers/bare") == b"1"
    out = files.open_output("/drivers/abandoned")
    out.abandon()
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


def test_delete_directory_removes_objects_only() -> None:
    class Buckets(Objects):
        def rmdir(self, path: str) -> None:
            raise FileExistsError(f"{path} is no bucket")

    files = FsspecFileSystem(Buckets(), "s3")
    for name in ("run[1]/chk-1/below/object", "run1/chk-1/below/object"):
        files.create(f"/b/{name}", b"1")
    files.delete_directory("/b/run[1]", recursive=True)
    assert [status.path for status in files.list_files("/b")] == ["/b/run1/chk-1/below/object"]


def test_abandoned_upload_never_appears() -> None:
    objects = Objects()
    out = FsspecFileSystem(objects, "s3").open_output("/b/object")
    out.write(b"1")
    out.abandon()
    assert objects.discarded == ["/b/object"]
    del out
    gc.collect()
    assert not objects.exists("/b/object")


def test_create_with_a_driver_without_modes_checks_first_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fsspec_driver.warn_of_inexclusive_create.cache_clear()
    files = FsspecFileSystem(OldDriver(), "memory")
    FsspecFileSystem(OldDriver(), "memory")
    (record,) = caplog.records
    assert "OldDriver of memory:// cannot create files exclusively" in record.getMessage()
    files.create("/drivers/old", b"one")
    assert files.read("/drivers/old") == b"one"
    with pytest.raises(FileExistsError, match="/drivers/old"):
        files.create("/drivers/old", b"two")
    assert files.read("/drivers/old") == b"one"


def test_create_passes_on_a_type_error_of_the_driver(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Memory):
        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
            if mode == "create":
                raise TypeError("unsupported credentials")
            super().pipe_file(path, value)

    files = FsspecFileSystem(Broken(), "memory")
    with pytest.raises(TypeError, match="unsupported credentials"):
        files.create("/drivers/broken", b"one")
    assert not files.exists("/drivers/broken")
    assert not caplog.records


def test_create_is_exclusive_where_the_driver_does_not_recognise_the_answer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec_driver.warn_of_inexclusive_create.cache_clear()
    files = FsspecFileSystem(MinioDriver(), "memory")
    # Not by a check before.
    monkeypatch.setattr(files, "exists", lambda _: False)
    files.create("/drivers/file", b"one")
    with pytest.raises(FileExistsError, match="/drivers/file"):
        files.create("/drivers/file", b"two")
    assert files.read("/drivers/file") == b"one"
    assert not caplog.records


@pytest.mark.parametrize(("driver", "warnings"), [(Memory, 0), (OldDriver, 1), (CheckingDriver, 1)])
def test_create_through_a_wrapping_driver_is_as_exclusive_as_the_driver_below(
    driver: type[Memory], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    fsspec_driver.warn_of_inexclusive_create.cache_clear()
    files = FsspecFileSystem(DirFileSystem("/drivers", driver(), skip_instance_cache=True), "dir")
    files.create("wrapped", b"one")
    with pytest.raises(FileExistsError):
        files.create("wrapped", b"two")
    assert files.read("wrapped") == b"one"
    assert len(caplog.records) == warnings


def test_replace_stages_in_the_same_directory(tmp_path: Path) -> None:
    class Driver(FsspecLocal):
        cachable = False

        def mv(self, path1: str, path2: str, **options: Any) -> None:
            assert Path(path1).parent == Path(path2).parent == tmp_path
            super().mv(path1, path2, **options)

    FsspecFileSystem(Driver(), "local").replace(str(tmp_path / "file"), b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_replace_deletes_first_with_a_driver_that_cannot_overwrite(tmp_path: Path) -> None:
    class Driver(FsspecLocal):
        cachable = False

        def mv(self, path1: str, path2: str, **options: Any) -> None:
            if self.exists(path2):
                raise FileExistsError(path2)
            super().mv(path1, path2, **options)

    files = FsspecFileSystem(Driver(), "local")
    for data in (b"one", b"two"):
        files.replace(str(tmp_path / "file"), data)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": data}


@pytest.mark.parametrize("removes", [True, False])
def test_failed_replace_raises_its_cause_and_removes_the_staging_file(tmp_path: Path, removes: bool) -> None:
    class Driver(FsspecLocal):
        cachable = False

        def mv(self, *_: Any, **__: Any) -> None:
            raise PermissionError("not here")

        def rm_file(self, path: str) -> None:
            if not removes:
                raise PermissionError("not there")
            super().rm_file(path)

    with pytest.raises(PermissionError, match="not here"):
        FsspecFileSystem(Driver(), "local").replace(str(tmp_path / "file"), b"1")
    assert len(list(tmp_path.iterdir())) == (0 if removes else 1)


def test_size_of_a_directory_raises_is_a_directory(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        FsspecFileSystem(fsspec.filesystem("local"), "local").size(str(tmp_path))


class NumberedError(OSError):
    """An error of SMB's client, which has a number and is of no class of Python's."""

    def __init__(self, number: int) -> None:
        super().__init__(f"[Error {number}] NtStatus 0xc0000034")
        self.errno = number
        self.status = 0xC0000034


class ReplyError(Exception):
    """A reply of a server that is no answer to the question."""


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOENT, FileNotFoundError), (errno.EACCES, PermissionError), (errno.EIO, OSError)],
)
def test_error_with_a_number_alone_is_of_its_class(number: int, kind: type[OSError]) -> None:
    class Driver(PlainDriver):
        def info(self, path: str, **_: Any) -> dict[str, Any]:
            raise NumberedError(number)

        def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
            raise NumberedError(number)

    files = FsspecFileSystem(Driver(), "plain")
    asks = [files.size, files.list_directory]
    if kind is FileNotFoundError:
        assert not files.exists("/file")
        assert list(files.list_files("/directory")) == []
    else:
        asks += [files.exists, files.is_directory, lambda path: list(files.list_files(path))]
    for ask in asks:
        with pytest.raises(kind) as raised:
            ask("/file")
        assert isinstance(raised.value, FileNotFoundError) == (kind is FileNotFoundError)


@pytest.mark.parametrize(
    ("cause", "is_absent"),
    [
        (KeyError("/file"), True),
        (ResourceExistsError("/file"), False),
        (type("ResourceNotFoundError", (Exception,), {})(), True),
        (NumberedError(errno.ENOENT), True),
        (OSError("HDFS file does not exist: /file"), True),
        (OSError("HDFS connection failed"), False),
        (ReplyError("450 busy"), False),
        (ConnectionResetError("lost"), False),
        (PermissionError("denied"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_missing_file_because_of_another_error_is_that_error(cause: Exception, is_absent: bool) -> None:
    class Driver(PlainDriver):
        def info(self, path: str, **_: Any) -> dict[str, Any]:
            raise FileNotFoundError(path) from cause

    files = FsspecFileSystem(Driver(), "plain")
    if is_absent:
        assert not files.exists("/file")
    else:
        with pytest.raises(OSError, match=r"lost|450 busy|denied|file|HDFS connection failed"):
            files.exists("/file")


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


@pytest.mark.parametrize("url", ["hdfs:///nn1/x", "hdfs:/nn1/x"])
def test_directory_is_not_taken_for_an_authority(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_driver(mapped: str, **_: Any) -> tuple[AbstractFileSystem, str]:
        opened.append(mapped)
        return RenamingDriver(), "/x"

    monkeypatch.setattr(fsspec.core, "url_to_fs", open_driver)
    monkeypatch.setattr(urls, "_opened", {})
    monkeypatch.setattr(urls, "check_url", lambda _: None)

    def files_of(location: str) -> FileSystem:
        return open_file_system(location)[0]

    assert files_of(url) is not files_of("hdfs://nn1/y")
    assert files_of(url) is files_of(url)
    assert files_of("hdfs://nn1/y") is files_of("hdfs://nn1/z")
