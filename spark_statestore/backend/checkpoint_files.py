"""Requests for the files that Spark writes itself: its logs, and the metadata of queries and operators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from spark_statestore.backend.protocol import FrameSocket, Kind
from spark_statestore.backend.supervision import LARGE_BYTES, Permit
from spark_statestore.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    ProtocolError,
)
from spark_statestore.files import FileStatus, FileSystem, LocalFileSystem, join, open_file_system, parent_of
from spark_statestore.files.failures import failing_to
from spark_statestore.files.request_context import check_cancelled
from spark_statestore.files.retry import require_exclusive_creation
from spark_statestore.options import StorageOptions


def _open(request: dict[str, Any]) -> tuple[FileSystem, str]:
    options = StorageOptions.parse(request["options"])
    files, path = open_file_system(request["path"], fsync=options.fsync, retries=options.storage_retries)
    return files, path.rstrip("/") or "/"


def _receive_parts(connection: FrameSocket, permit: Permit) -> list[memoryview]:
    """Receive the frames that follow a request, up to its end."""
    parts: list[memoryview] = []
    received = 0
    while True:
        frame = connection.receive()
        if frame is None:
            raise ConnectionResetError("the connection was closed within a request")
        if frame.kind is Kind.END:
            return parts
        if frame.kind is not Kind.OBJECT:
            raise ProtocolError(f"a {frame.kind.name} frame among the parts of a file")
        received += frame.payload.size
        if received >= LARGE_BYTES:
            permit.acquire()
        parts.append(memoryview(frame.payload).cast("B"))


def _read(request: dict[str, Any], connection: FrameSocket, permit: Permit) -> None:
    connection.expect_end()
    files, path = _open(request)
    if request["size"] >= LARGE_BYTES:
        permit.acquire()
    with failing_to("read", files, path):
        try:
            if request["start"] == 0:
                _make_durable(files, path)
            data = files.read(path, request["start"], request["size"])
        except FileNotFoundError as error:
            raise _missing(files, path) from error
    connection.send_json(Kind.CONTROL, {})
    connection.send(Kind.OBJECT, data)
    connection.send(Kind.END)


def _create(request: dict[str, Any], connection: FrameSocket, permit: Permit) -> None:
    parts = _receive_parts(connection, permit)
    files, path = _open(request)
    data = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
    with failing_to("write", files, path):
        files.make_directory(parent_of(path))
        check_cancelled()
        _remove_hadoops_checksum(files, path)
        if request["overwrite"]:
            files.replace(path, data)
        else:
            _create_exclusively(files, path, data, is_repeated=request["repeated"])
    _answer(connection, {})


def _create_exclusively(files: FileSystem, path: str, data: memoryview, *, is_repeated: bool) -> None:
    try:
        files.create(path, data)
    except FileExistsError as error:
        # A backend that ended before its answer may have written it for this very request.
        if not is_repeated or files.read(path) != data:
            raise CheckpointExistsError(
                f"{files.url(path)} exists already, and was not changed: another query, or another run of "
                "this one, writes to the same checkpoint. Stop one of them, or give each query a "
                "checkpointLocation of its own."
            ) from error
        _make_durable(files, path)
    else:
        require_exclusive_creation(files, path, [data])


def _status(request: dict[str, Any], connection: FrameSocket, permit: Permit) -> None:
    connection.expect_end()
    files, path = _open(request)
    with failing_to("look for", files, path):
        try:
            statuses = [FileStatus(path, files.size(path))]
        except (FileNotFoundError, IsADirectoryError):
            is_directory = not request["isFile"] and files.is_directory(path)
            statuses = [FileStatus(path, 0, is_directory=True)] if is_directory else []
    _answer(connection, {"entries": [_entry(status) for status in statuses]})


def _list(request: dict[str, Any], connection: FrameSocket, permit: Permit) -> None:
    connection.expect_end()
    files, path = _open(request)
    with failing_to("list", files, path):
        try:
            entries = files.list_directory(path)
        except FileNotFoundError as error:
            raise _missing(files, path) from error
    _answer(
        connection, {"entries": [_entry(status) for status in entries if not _is_hadoops_checksum(status)]}
    )


def _delete(request: dict[str, Any], connection: FrameSocket, permit: Permit) -> None:
    connection.expect_end()
    files, path = _open(request)
    with failing_to("remove", files, path):
        if files.is_directory(path):
            files.delete_directory(path, recursive=True)
        else:
            _remove(files, [path])
    _answer(connection, {})


def _delete_files(request: dict[str, Any], connection: FrameSocket, permit: Permit) -> None:
    connection.expect_end()
    files, directory = _open(request)
    paths = [join(directory, name) for name in request["names"]]
    with failing_to("remove files of", files, directory):
        _remove(files, paths)
    _answer(connection, {})


def _make_directory(request: dict[str, Any], connection: FrameSocket, permit: Permit) -> None:
    connection.expect_end()
    files, path = _open(request)
    with failing_to("make the directory", files, path):
        files.make_directory(path)
    _answer(connection, {})


def _answer(connection: FrameSocket, answer: dict[str, Any]) -> None:
    connection.send_json(Kind.CONTROL, answer)
    connection.send(Kind.END)


def _entry(status: FileStatus) -> dict[str, Any]:
    return {
        "name": status.path.rpartition("/")[2],
        "size": status.size,
        "modified": None if status.modified is None else int(status.modified * 1000),
        "isDirectory": status.is_directory,
    }


def _missing(files: FileSystem, path: str) -> CheckpointNotFoundError:
    return CheckpointNotFoundError(f"{files.url(path)} does not exist")


def _make_durable(files: FileSystem, path: str) -> None:
    """Sync a file whose writer may have ended before it synced.

    The driver relies on what it finds.
    """
    # Objects and files of HDFS are durable once they can be seen; other drivers of fsspec could only write
    # the file again.
    if isinstance(files, LocalFileSystem):
        files.make_durable(path)


def _remove(files: FileSystem, paths: list[str]) -> None:
    files.delete_files(paths)
    for path in paths:
        _remove_hadoops_checksum(files, path)


# Hadoop keeps the checksum of a local file x in .x.crc, and refuses the file if it does not match.
def _remove_hadoops_checksum(files: FileSystem, path: str) -> None:
    if isinstance(files, LocalFileSystem):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            files.delete(join(parent_of(path), f".{path.rpartition('/')[2]}.crc"))


def _is_hadoops_checksum(status: FileStatus) -> bool:
    name = status.path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(".crc")


FILE_HANDLERS: dict[str, Callable[[dict[str, Any], FrameSocket, Permit], None]] = {
    "readFile": _read,
    "createFile": _create,
    "fileStatus": _status,
    "listDirectory": _list,
    "deleteFile": _delete,
    "deleteFiles": _delete_files,
    "makeDirectory": _make_directory,
}
"""Handlers of the requests for files, by the request's name."""
