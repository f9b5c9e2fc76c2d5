"""Places that the contracts of streams and storages are run in."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from spark_statestore.checkpoint.files import FsspecFileSystem, LocalFileSystem, MemoryFileSystem


class Local:
    """Files of this machine."""

    @pytest.fixture
    def directory(self, tmp_path: Path) -> str:
        return f"{tmp_path}/{uuid.uuid4()}"

    @pytest.fixture
    def files(self) -> LocalFileSystem:
        return LocalFileSystem()


class Synced(Local):
    """Files of this machine, synced."""

    @pytest.fixture
    def files(self) -> LocalFileSystem:
        return LocalFileSystem(fsync=True)


class FsspecMemory:
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


class ProcessMemory:
    """Files of this process."""

    has_directories = False

    @pytest.fixture
    def files(self) -> MemoryFileSystem:
        return MemoryFileSystem()

    @pytest.fixture
    def directory(self) -> str:
        return "/base"
