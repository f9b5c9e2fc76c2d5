"""Contract of file systems whose calls of storage fail: an error is never taken for absence."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from spark_statestore.files import FileSystem, join
from tests.support.contracts.on_files import OnFiles

__all__ = ["FailingCallsTests"]

KEPT = {"dir/one": b"1", "dir/below/two": b"22", "top": b"333"}
NEW = b"new content"


def write_output(files: FileSystem, path: str) -> None:
    out = files.open_output(path)
    try:
        out.write(NEW)
        out.close()
    except BaseException:
        out.abandon()
        raise


def content(files: FileSystem, path: str) -> bytes:
    with files.open_input(path) as stream:
        return stream.read()


@dataclass(frozen=True)
class Operation:
    """A call of a file system on the files of `KEPT`, and the names of those that it replaces or removes."""

    call: Callable[[FileSystem, str], Any]
    replaces: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()


OPERATIONS = {
    "read": Operation(lambda files, root: files.read(join(root, "top"))),
    "read a range": Operation(lambda files, root: files.read(join(root, "top"), 1, 1)),
    "size": Operation(lambda files, root: files.size(join(root, "top"))),
    "open_input": Operation(lambda files, root: content(files, join(root, "top"))),
    "exists": Operation(lambda files, root: files.exists(join(root, "top"))),
    "exists, of a directory": Operation(lambda files, root: files.exists(join(root, "dir"))),
    "is_directory": Operation(lambda files, root: files.is_directory(join(root, "dir"))),
    "list_files": Operation(
        lambda files, root: sorted((status.path, status.size) for status in files.list_files(root))
    ),
    "list_directory": Operation(
        lambda files, root: sorted((status.path, status.size) for status in files.list_directory(root))
    ),
    "has_link": Operation(lambda files, root: files.has_link(root, "dir/one")),
    "create": Operation(lambda files, root: files.create(join(root, "new"), NEW)),
    "create, of an existing file": Operation(lambda files, root: files.create(join(root, "top"), NEW)),
    "create_of_parts, of an existing file": Operation(
        lambda files, root: files.create_of_parts(join(root, "top"), [NEW, NEW])
    ),
    "open_output": Operation(lambda files, root: write_output(files, join(root, "new"))),
    "replace": Operation(lambda files, root: files.replace(join(root, "top"), NEW), ("top",)),
    "delete": Operation(lambda files, root: files.delete(join(root, "top")), removes=("top",)),
    "delete_files": Operation(
        lambda files, root: files.delete_files([join(root, "top"), join(root, "missing")]), removes=("top",)
    ),
    "delete_directory": Operation(
        lambda files, root: files.delete_directory(join(root, "dir"), recursive=True),
        removes=("dir/one", "dir/below/two"),
    ),
    "make_directory": Operation(lambda files, root: files.make_directory(join(root, "a", "b"))),
    "make_durable": Operation(lambda files, root: files.make_durable(join(root, "top"))),
    "sync_directory": Operation(lambda files, root: files.sync_directory(join(root, "dir"))),
}


class FailingCallsTests(OnFiles):
    """Each call of storage fails once, and all are denied; subclasses override the fixtures and `failing`."""

    unaffected: frozenset[str] = frozenset()
    """Operations that need no call of storage."""

    @contextlib.contextmanager
    def failing(
        self, files: FileSystem, error: Callable[[], BaseException] | None, at: Collection[int] | None
    ) -> Iterator[list[str]]:
        """Let calls of storage fail: those of these numbers, from 1, or all; return the list of the calls."""
        raise NotImplementedError
        yield []

    def failure(self) -> BaseException:
        """Return an error of storage that may not come again."""
        return ConnectionResetError("connection lost")

    def denial(self) -> BaseException:
        """Return an error of storage that denies access."""
        return PermissionError(13, "Permission denied")

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_call_that_fails_once_is_an_error_or_has_no_effect(
        self, files: FileSystem, directory: str, name: str
    ) -> None:
        operation = OPERATIONS[name]
        root = self.fresh(files, directory, 0)
        with self.failing(files, None, ()) as all_calls:
            expected = self.outcome(operation, files, root)
        after = self.state(files, root)
        for number in range(1, len(all_calls) + 1):
            root = self.fresh(files, directory, number)
            with self.failing(files, self.failure, {number}) as calls:
                result = self.outcome(operation, files, root)
            remaining = self.state(files, root)
            where = f"{name}, where call {number} fails of {calls}"
            if isinstance(result, Exception):
                is_answer = type(result) is type(expected)
                assert is_answer or not isinstance(result, FileNotFoundError | FileExistsError), where
                assert isinstance(result, OSError), where
                self.check_kept(operation, remaining, where)
            else:
                assert result == expected, where
                assert remaining == after, where

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_denied_call_is_an_error(self, files: FileSystem, directory: str, name: str) -> None:
        operation = OPERATIONS[name]
        root = self.fresh(files, directory, 0)
        with self.failing(files, self.denial, None) as calls:
            result = self.outcome(operation, files, root)
        assert bool(calls) == (name not in self.unaffected)
        if calls:
            assert isinstance(result, PermissionError), (result, calls)
        assert self.state(files, root) == KEPT

    def check_kept(self, operation: Operation, remaining: dict[str, bytes], where: str) -> None:
        """Check the files that are left after an error."""
        for name, data in KEPT.items():
            assert (
                remaining.get(name) == data
                or (name in operation.removes and name not in remaining)
                or (name in operation.replaces and remaining.get(name) == NEW)
            ), where

    def fresh(self, files: FileSystem, directory: str, number: int) -> str:
        """Return a new directory with the files of `KEPT`."""
        root = join(directory, str(number))
        for name, data in KEPT.items():
            path = join(root, name)
            files.make_directory(path.rpartition("/")[0])
            files.create(path, data)
        return root

    @staticmethod
    def outcome(operation: Operation, files: FileSystem, root: str) -> Any:
        """Return an operation's result, with names relative to its directory, or its error."""
        try:
            result = operation.call(files, root)
        except Exception as error:  # noqa: BLE001 - the test judges it
            return error
        return [(path[len(root) :], size) for path, size in result] if isinstance(result, list) else result

    @staticmethod
    def state(files: FileSystem, root: str) -> dict[str, bytes]:
        """Return the content of all files by relative path, but for what a failed write may leave."""
        return {
            status.path[len(root) + 1 :]: files.read(status.path)
            for status in files.list_files(root)
            if ".inprogress." not in status.path
        }
