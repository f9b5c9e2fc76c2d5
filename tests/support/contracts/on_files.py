"""Base of the contracts on a file system: its directory, and the content of what is stored there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_statestore.files import FileSystem
from spark_statestore.storage.stream_handles import StreamStateHandle

__all__ = ["OnFiles"]


class OnFiles:
    """Fixtures of a contract; subclasses override ``files`` and ``directory``."""

    @pytest.fixture
    def files(self) -> FileSystem:
        """Return the file system under test."""
        raise NotImplementedError

    @pytest.fixture
    def directory(self) -> str:
        """Return the path of a directory for this test alone, which need not exist."""
        raise NotImplementedError

    @pytest.fixture
    def stored(self, files: FileSystem, directory: str) -> Callable[[], list[str]]:
        """Return a function that lists the names of the files below the directory."""
        start = directory.rstrip("/") + "/"
        return lambda: sorted(status.path.removeprefix(start) for status in files.list_files(directory))

    @staticmethod
    def content(handle: StreamStateHandle) -> bytes:
        with handle.open_input_stream() as stream:
            return stream.read()
