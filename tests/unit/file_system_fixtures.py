"""File systems and directories as fixtures for the contracts of streams and storages."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from spark_statestore.files import FsspecFileSystem, LocalFileSystem, MemoryFileSystem


class LocalFiles:
    """LocalFiles files."""

    @pytest.fixture
    def directory(self, tmp_path: Path) -> str:
        return f"{tmp_path}/{uuid.uuid4()}"

    @pytest.fixture
    def files(self) -> LocalFileSystem:
        return LocalFileSystem()


class SyncedLocalFiles(LocalFiles):
    """LocalFiles files, with fsync."""

    @pytest.fixture
    def files(self) -> LocalFileSystem:
        return LocalFileSystem(fsync=True)


class FsspecMemoryFiles:
    """Files of fsspec's ``memory://``."""

    @pytest.fixture
    def files(self) -> FsspecFileSystem:
        return FsspecFileSystem(fsspec.filesystem("memory"), "memory")

    @pytest.fixture
    def directory(self) -> Iterator[str]:
        path = f"/{uuid.uuid4()}"
        yield path
        fs = fsspec.filesystem("memory")
        if fs.exists(path):
            fs.rm(path, recursive=True)


class ProcessMemoryFiles:
    """Files in the memory of this process."""

    has_directories = False

    @pytest.fixture
    def files(self) -> MemoryFileSystem:
        return MemoryFileSystem()

    @pytest.fixture
    def directory(self) -> str:
        return "/base"
