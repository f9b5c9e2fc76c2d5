"""Tests of file systems: the contract on each of them, and URLs."""

from __future__ import annotations

import errno
import importlib.util
import os
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import pytest

from spark_statestore.errors import MissingDriverError, StorageUnavailableError, StorageURLError
from spark_statestore.files import (
    FileStatus,
    FileSystem,
    FsspecFileSystem,
    LocalFileSystem,
    MemoryFileSystem,
    check_url,
    join,
    open_file_system,
    parent_of,
    split_url,
    urls,
)
from spark_statestore.files.retry import RetryingFileSystem
from spark_statestore.testing import FileSystemTests


def local_without(*names: str) -> LocalFileSystem:
    files = LocalFileSystem()
    for name in names:
        setattr(files, name, False)
    return files


class LocalTests(FileSystemTests):
    @pytest.fixture
    def directory(self, tmp_path: Path) -> str:
        return f"{tmp_path}/{uuid.uuid4()}"


class TestLocalFiles(LocalTests):
    @pytest.fixture(params=["all features", "fsync", "no unnamed files", "no links"])
    def files(self, request: pytest.FixtureRequest) -> LocalFileSystem:
        if request.param == "no unnamed files":
            return local_without("_unnamed_files")
        if request.param == "no links":
            return local_without("_unnamed_files", "_hard_links")
        return LocalFileSystem(fsync=request.param == "fsync")


class TestFilesOfThisProcess(LocalTests):
    has_directories = False

    @pytest.fixture(params=[False, True], ids=["alone", "with retries"])
    def files(self, request: pytest.FixtureRequest) -> FileSystem:
        return RetryingFileSystem(MemoryFileSystem()) if request.param else MemoryFileSystem()


class TestFsspecFiles(LocalTests):
    creates_exclusively = False
    opens_exclusively = False

    @pytest.fixture(params=["memory", "local"])
    def files(self, request: pytest.FixtureRequest) -> FsspecFileSystem:
        return FsspecFileSystem(fsspec.filesystem(request.param), request.param)


class TestFsspecFilesThatAreSynced(LocalTests):
    opens_exclusively = False

    @pytest.fixture
    def files(self) -> FsspecFileSystem:
        return FsspecFileSystem(fsspec.filesystem("local"), "local", fsync=True)


each_kind = pytest.mark.parametrize(
    "files",
    [LocalFileSystem(), MemoryFileSystem(), FsspecFileSystem(fsspec.filesystem("memory"), "memory")],
    ids=["local", "process", "fsspec"],
)


@each_kind
def test_sizes_are_those_of_files_of_this_directory(files: FileSystem, tmp_path: Path) -> None:
    for name in ("dir/X", "dir/X2"):
        files.make_directory(f"{tmp_path}/{name}")
        files.create(f"{tmp_path}/{name}/empty", b"")
    assert list(files.list_files(f"{tmp_path}/dir/X/")) == [FileStatus(f"{tmp_path}/dir/X/empty", 0)]
    with pytest.raises(IsADirectoryError, match=f"{tmp_path}/dir/X"):
        files.size(f"{tmp_path}/dir/X")


@pytest.mark.parametrize("files", [LocalFileSystem(), MemoryFileSystem()], ids=["local", "process"])
def test_error_names_the_path(files: FileSystem, tmp_path: Path) -> None:
    directory = f"{tmp_path}/d"
    files.make_directory(directory)
    files.create(f"{directory}/file", b"1")
    for error, fail in (
        (FileNotFoundError, lambda: files.read(f"{directory}/none")),
        (FileNotFoundError, lambda: files.delete(f"{directory}/none")),
        (FileExistsError, lambda: files.create(f"{directory}/file", b"2")),
    ):
        with pytest.raises(error, match=directory):
            fail()


def test_make_directory_refuses_the_name_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    with pytest.raises(FileExistsError):
        LocalFileSystem().make_directory(str(tmp_path / "file"))


def test_failed_create_leaves_no_staging_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for lacking in ([], ["_unnamed_files"], ["_unnamed_files", "_hard_links"]):
        files = local_without(*lacking)
        monkeypatch.setattr(os, "write", no_space)
        monkeypatch.setattr(os, "writev", no_space)
        for write in (files.create, files.replace):
            with pytest.raises(OSError, match="No space"):
                write(str(tmp_path / "file"), b"1")
        with pytest.raises(OSError, match="No space"):
            files.create_of_parts(str(tmp_path / "file"), [b"1", b"2"])
        monkeypatch.undo()
        assert list(tmp_path.iterdir()) == []


def test_write_continues_after_a_short_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    most = 0

    def some(fd: int, data: bytes) -> int:
        return write(fd, bytes(data)[:most])

    monkeypatch.setattr(os, "write", some)
    monkeypatch.setattr(os, "writev", lambda fd, parts: some(fd, b"".join(parts)))
    parts = [b"0", b"", b"123", b"4567", b"89"]
    for most in range(1, 12):
        out = LocalFileSystem().open_output(str(tmp_path / str(most)))
        out.write_parts(parts)
        out.write(b"".join(parts))
        out.close()
        assert (tmp_path / str(most)).read_bytes() == b"0123456789" * 2


# URLs


@pytest.mark.parametrize(
    ("url", "split"),
    [
        ("/data/state", ("file", "/data/state")),
        ("data/state", ("file", "data/state")),
        ("file:/data/state", ("file", "/data/state")),
        ("file:///data/state", ("file", "///data/state")),
        ("FILE:///data", ("file", "///data")),
        (" s3://bucket/state ", ("s3", "//bucket/state")),
        ("s3a://bucket/state", ("s3", "//bucket/state")),
        ("s3n://bucket/state", ("s3", "//bucket/state")),
        ("gs://bucket/state", ("gcs", "//bucket/state")),
        ("wasbs://c@account.blob.core.windows.net/x", ("abfs", "//c@account.blob.core.windows.net/x")),
        ("abfss://c@account.dfs.core.windows.net/x", ("abfs", "//c@account.dfs.core.windows.net/x")),
        ("memory:/x", ("memory", "/x")),
        ("/data/with:colon", ("file", "/data/with:colon")),
        ("c:/data", ("file", "c:/data")),
        ("X", ("file", "X")),
        ("hdfs://namenode:8020/user/a@b", ("hdfs", "//namenode:8020/user/a@b")),
    ],
)
def test_split_url_accepts_spark_urls(url: str, split: tuple[str, str]) -> None:
    assert split_url(url) == split


def test_local_path_is_not_unquoted_and_relative_to_the_working_directory() -> None:
    for url in ("file:/X%20b/../c d", "file:///X%20b/../c d", "/X%20b/../c d"):
        assert open_file_system(url)[1] == "/X%20b/../c d"
    assert open_file_system("state")[1] == str(Path.cwd() / "state")


@pytest.mark.parametrize("url", ["", "  ", "s3://", "file:", "file:///", "/"])
def test_url_without_a_directory_is_refused(url: str) -> None:
    with pytest.raises(StorageURLError, match="names no directory"):
        open_file_system(url)


@pytest.mark.parametrize(
    "url", ["https://host/x", "data:x", "github://a/b", "nonsense://x/y", "hfds://nn/x", "ftp://host/x"]
)
def test_check_url_refuses_schemes_without_writable_storage(url: str) -> None:
    reason = "over FTP, .* is reported as missing" if "ftp:" in url else "the scheme '.*' is not one of"
    for check in (check_url, open_file_system):
        with pytest.raises(StorageURLError, match=f"'{url}' cannot hold state: {reason}"):
            check(url)


@pytest.mark.parametrize(
    ("url", "hidden", "remedy"),
    [
        ("s3a://b/x", "obstore", r"obstore not found .*statestore\[s3\]'; .* than obstore, botocore\)"),
        ("s3://b/x", "botocore", r"botocore not found .*statestore\[s3\]'; .* than obstore, botocore\)"),
        ("gs://b/x", "google.auth", r"google-auth not .*\[gcs\]'; .* obstore, google-auth, requests\)"),
        ("abfss://c@a.dfs.core.windows.net/x", "obstore", r"obstore not found .*\[azure\]'; .* obstore\)"),
        ("webdav://host/x", "webdav4", "Install webdav4 to access WebDAV"),
        ("smb://host/x", "smbclient", 'requires "smbprotocol" .* installed'),
    ],
)
def test_open_file_system_names_a_missing_driver(
    url: str, hidden: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, hidden, raising=False)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == hidden else find_spec(name))
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, split_url(url)[0], raising=False)
    check_url("memory:/x")
    for check in (check_url, open_file_system):
        with pytest.raises(MissingDriverError, match=rf"{remedy}\. The backend") as raised:
            check(url)
        assert url in str(raised.value)
        assert isinstance(raised.value, ImportError)


@pytest.mark.parametrize(
    "url", ["s3://KEY:hunter2@bucket/x", "s3a://KEY:hun/ter2@bucket/x", "HDFS://a:hunter2@b/c"]
)
def test_url_with_a_password_is_refused_and_masked(url: str) -> None:
    for check in (check_url, open_file_system):
        with pytest.raises(StorageURLError, match="contains a password") as raised:
            check(url)
        assert "ter2" not in str(raised.value)


@pytest.mark.parametrize("utf8", ["0", "1"])
def test_path_that_the_locale_lacks_is_refused_with_what_to_set(tmp_path: Path, utf8: str) -> None:
    program = (
        "import sys; from spark_statestore.files import open_file_system\n"
        "files, path = open_file_system(sys.argv[1] + '/pr\\xfcfung')\n"
        "files.make_directory(path)"
    )
    environment = os.environ | {"LC_ALL": "POSIX", "PYTHONUTF8": utf8, "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", program, str(tmp_path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if utf8 == "1":
        assert (run.returncode, run.stderr) == (0, "")
        assert [path.name for path in tmp_path.iterdir()] == ["pr\xfcfung"]
    else:
        last = run.stderr.strip().splitlines()[-1]
        assert "StorageURLError" in last
        assert r"names files in ascii, because of its locale, which lacks '\xfc'" in last
        assert "Set LC_ALL=C.UTF-8 or PYTHONUTF8=1" in last


def test_open_file_system_names_the_url_of_a_failing_driver() -> None:
    # There is no such user database, name server or key behind it.
    with pytest.raises((StorageUnavailableError, MissingDriverError)) as raised:
        open_file_system("sftp://nobody@localhost:1/x")
    assert "sftp://nobody@localhost:1/x" in str(raised.value)


def test_url_may_lack_a_host_as_hadoop_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files, path = open_file_system("memory:/without/host")
    files.replace(path, b"1")
    same, where = open_file_system("memory:///without/host")
    assert same.read(where) == b"1"
    # fsspec would take it for a local path.
    assert list(tmp_path.iterdir()) == []


def test_open_file_system_caches_by_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "_opened", {})
    first, path = open_file_system("memory://a/x")
    again, deeper = open_file_system("memory://a/y/z")
    assert isinstance(first, RetryingFileSystem)
    assert isinstance(first.wrapped, FsspecFileSystem)
    assert first is again
    assert (path, deeper) == ("/a/x", "/a/y/z")
    assert first.scheme == "memory"
    # The authority may be an account; without one, "a" is a directory.
    for other_url in ("memory://b/x", "memory://Xa/x", "memory:///a/x", "memory:/a/x"):
        assert open_file_system(other_url)[0] is not first
        assert open_file_system(other_url)[0] is open_file_system(other_url)[0]
    local = open_file_system("/x")[0]
    assert isinstance(local, LocalFileSystem)
    assert open_file_system("file:/y")[0] is local
    for url, unsynced in (("/x", local), ("memory://a/x", first)):
        synced = open_file_system(url, fsync=True)[0]
        assert synced is not unsynced
        drivers = [getattr(files, "wrapped", files) for files in (synced, unsynced)]
        assert [driver._fsync for driver in drivers] == [True, False]


def test_join_and_parent_of() -> None:
    assert join("/aX/", "b", "c") == "/aX/b/c"
    assert parent_of("/aX/b/") == parent_of("/aX/bX") == "/aX"
    assert parent_of("/aX/X") == "/aX"
    assert LocalFileSystem().url("/a") == "file:///a"
    assert FsspecFileSystem(fsspec.filesystem("memory"), "s3").url("bucket/a") == "s3://bucket/a"


def test_list_files_returns_modification_times(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    os.utime(tmp_path / "file", (1_700_000_000, 1_700_000_000))
    for files in (LocalFileSystem(), FsspecFileSystem(fsspec.filesystem("local"), "local")):
        assert [status.modified for status in files.list_files(str(tmp_path))] == [1_700_000_000]


@pytest.mark.parametrize(
    ("detail", "modified"),
    [
        ({"LastModified": datetime(2024, 1, 1, tzinfo=UTC)}, 1_704_067_200),
        ({"created": datetime(2024, 1, 1)}, 1_704_067_200),
        ({"updated": "2024-01-01T01:00:00.000+01:00"}, 1_704_067_200),
        ({"updated": "yesterday", "created": 1}, 1),
        ({"mtime": None}, None),
        ({}, None),
    ],
)
def test_modification_time_is_read_from_every_driver(
    detail: dict[str, object], modified: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = fsspec.filesystem("memory")
    entry = {"name": "/file", "size": 1, "type": "file"}
    monkeypatch.setattr(type(fs), "ls", lambda *_, **__: [entry | detail])
    assert [status.modified for status in FsspecFileSystem(fs, "memory").list_files("/")] == [modified]
