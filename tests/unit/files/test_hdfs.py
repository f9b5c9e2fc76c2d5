"""Tests of HDFS without a server; `make test-storage` has those with one."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from fsspec.registry import _registry

from spark_statestore.errors import MissingDriverError
from spark_statestore.files import FileSystem, open_file_system
from tests.support.services.service import free_port


@pytest.mark.parametrize(
    "call",
    [
        lambda files: files.exists("/d/file"),
        lambda files: files.is_directory("/d"),
        lambda files: files.size("/d/file"),
        lambda files: list(files.list_files("/d")),
        lambda files: files.list_directory("/d"),
        lambda files: files.create("/d/file", b"1"),
        lambda files: files.delete_directory("/d"),
    ],
    ids=["exists", "is_directory", "size", "list_files", "list_directory", "create", "delete_directory"],
)
def test_unreachable_server_is_an_error(call: Callable[[FileSystem], object]) -> None:
    pytest.importorskip("requests")
    files, _ = open_file_system(f"webhdfs://127.0.0.1:{free_port()}/d", retries=0)
    with pytest.raises(OSError, match="Connection refused"):
        call(files)


def test_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "requests", None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.webhdfs", raising=False)
    monkeypatch.delitem(_registry, "webhdfs", raising=False)
    with pytest.raises(MissingDriverError, match=r"is not installed .* requires .requests. to be"):
        open_file_system(f"webhdfs://127.0.0.1:{free_port()}/d")
