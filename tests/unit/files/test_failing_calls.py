"""Tests that no file system takes a failed call of storage for absence."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import obstore
import obstore.store
import pytest

from spark_statestore.files import (
    FileSystem,
    FsspecFileSystem,
    LocalFileSystem,
    local,
    object_store,
    open_file_system,
    retry,
)
from spark_statestore.files.hdfs import HdfsFileSystem
from spark_statestore.files.object_store import ObjectStoreFileSystem
from spark_statestore.files.retry import RetryingFileSystem
from spark_statestore.storage.merged_file_system import MergedFileSystem
from spark_statestore.storage.merged_files import MergedFiles
from tests.support.contracts.failing_calls import FailingCallsTests
from tests.support.drivers.plain_driver import FailingCalls, PlainDriver, RenamingDriver
from tests.support.services.service import free_port


class HadoopDriver(RenamingDriver):
    """A driver that removes a directory with one call."""

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        self.calls.call("rm")
        (self._store.rm if recursive or self._store.isfile(path) else self._store.rmdir)(path, recursive)


@contextlib.contextmanager
def counted_calls(
    module: Any, names: list[str], error: Callable[[], BaseException] | None, at: Collection[int] | None
) -> Iterator[list[str]]:
    """Let functions of a module fail, as `FailingCalls.failing`."""
    calls = FailingCalls()

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(*arguments: Any, **options: Any) -> Any:
            calls.call(name)
            return call(*arguments, **options)

        return replacement

    with pytest.MonkeyPatch.context() as patch, calls.failing(error, at) as call_names:
        for name in names:
            patch.setattr(module, name, counted(name, getattr(module, name)))
        if module is os:
            patch.setattr(local, "open", counted("open", open), raising=False)
        yield call_names


class Buckets:
    """Buckets in memory."""

    retries = 0
    credentials_error = None

    def __init__(self) -> None:
        self.store = obstore.store.MemoryStore()

    def open(self, bucket: str, kind: Any) -> Any:
        return self.store


class DriverTests(FailingCallsTests):
    """The contract with a driver of fsspec's that is in memory."""

    unaffected = frozenset({"has_link", "make_durable", "sync_directory"})

    @pytest.fixture
    def directory(self) -> str:
        return f"/{uuid.uuid4()}"

    @contextlib.contextmanager
    def failing(
        self, files: FileSystem, error: Callable[[], BaseException] | None, at: Collection[int] | None
    ) -> Iterator[list[str]]:
        with self.driver.calls.failing(error, at) as call_names:
            yield call_names


class TestDrivers(DriverTests):
    """A driver with fsspec's own `exists`, `isdir`, `find` and `mv`, and drivers that rename."""

    @pytest.fixture(params=["plain", "fsync", "renaming", "hdfs", "merged files"])
    def files(self, request: pytest.FixtureRequest, directory: str) -> FileSystem:
        kind = request.param
        if kind == "hdfs":
            self.driver = HadoopDriver()
            return HdfsFileSystem(self.driver, "hdfs")
        self.driver = PlainDriver() if kind in ("plain", "fsync") else RenamingDriver()
        files = FsspecFileSystem(self.driver, "plain", fsync=kind == "fsync")
        if kind in ("fsync", "merged files"):
            self.unaffected = DriverTests.unaffected - {"make_durable"}
        return MergedFileSystem(files, MergedFiles(files, directory)) if kind == "merged files" else files


class TestRetries(DriverTests):
    """A driver's transient errors, which are retried."""

    @pytest.fixture
    def files(self, monkeypatch: pytest.MonkeyPatch) -> RetryingFileSystem:
        monkeypatch.setattr(retry.time, "sleep", lambda _: None)
        self.driver = PlainDriver()
        return RetryingFileSystem(FsspecFileSystem(self.driver, "plain"), retries=1)


class TestObjectStore(FailingCallsTests):
    """Objects, whose requests fail."""

    unaffected = frozenset({"has_link", "make_directory", "make_durable", "sync_directory"})

    @pytest.fixture
    def files(self) -> ObjectStoreFileSystem:
        return ObjectStoreFileSystem(Buckets(), "s3")

    @pytest.fixture
    def directory(self) -> str:
        return "bucket/state"

    def failure(self) -> Exception:
        return obstore.exceptions.GenericError("connection reset")

    def denial(self) -> Exception:
        return obstore.exceptions.PermissionDeniedError("denied")

    @contextlib.contextmanager
    def failing(
        self, files: FileSystem, error: Callable[[], BaseException] | None, at: Collection[int] | None
    ) -> Iterator[list[str]]:
        names = ["get", "head", "put", "list", "list_with_delimiter", "delete"]
        with counted_calls(object_store.obstore, names, error, at) as call_names:
            yield call_names


SYSTEM_CALLS = [
    *("stat", "lstat", "scandir", "open", "write", "writev", "fsync", "link", "unlink", "replace"),
    *("mkdir", "rmdir"),
]


class TestLocal(FailingCallsTests):
    """Local files, whose system calls fail."""

    @pytest.fixture(params=[False, True], ids=["no fsync", "fsync"])
    def files(self, request: pytest.FixtureRequest) -> LocalFileSystem:
        self.unaffected = frozenset() if request.param else frozenset({"make_durable", "sync_directory"})
        return LocalFileSystem(fsync=request.param)

    @pytest.fixture
    def directory(self, tmp_path: Path) -> str:
        return str(tmp_path)

    def failure(self) -> OSError:
        return OSError(5, "Input/output error")

    @contextlib.contextmanager
    def failing(
        self, files: FileSystem, error: Callable[[], BaseException] | None, at: Collection[int] | None
    ) -> Iterator[list[str]]:
        with counted_calls(os, SYSTEM_CALLS, error, at) as call_names:
            yield call_names


def test_unreachable_hdfs_is_an_error() -> None:
    pytest.importorskip("requests")
    files, _ = open_file_system(f"webhdfs://127.0.0.1:{free_port()}/d", retries=0)
    for call in (
        lambda: files.exists("/d/file"),
        lambda: files.is_directory("/d"),
        lambda: files.size("/d/file"),
        lambda: list(files.list_files("/d")),
        lambda: files.list_directory("/d"),
        lambda: files.create("/d/file", b"1"),
        lambda: files.delete_directory("/d"),
    ):
        with pytest.raises(OSError, match="Connection refused"):
            call()
