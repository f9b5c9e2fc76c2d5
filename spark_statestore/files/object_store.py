"""Files of object stores through obstore."""

from __future__ import annotations

import contextlib
import io
import queue
import threading
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final, cast

import obstore

from spark_statestore.files.access import access_error
from spark_statestore.files.base import Buffer, FileOutput, FileStatus, FileSystem
from spark_statestore.files.object_store_clients import Client, ObjectStoreClients
from spark_statestore.files.object_store_errors import ObjectStoreError, converted
from spark_statestore.files.request_context import heartbeat
from spark_statestore.files.retry import RetryingFileSystem

__all__ = ["ObjectStoreFileSystem"]

_PART_BYTES: Final = 8 << 20
"""Size of a part of an upload; S3 allows 10,000 of them, so that a file has at most 78 GiB."""

_PARTS_IN_FLIGHT: Final = 3
_PIECE_BYTES: Final = 1 << 20

# Small files are read by one request, large ones by few.
_FIRST_READ_BYTES: Final = 1 << 20
_LARGEST_READ_BYTES: Final = 8 << 20

# A cancelled request must not wait long for a hung service.
_ABANDON_SECONDS: Final = 10.0

_UPLOAD: Final = "upload"
"""Metadata of an object uploaded in parts: the id of the upload."""


class ObjectStoreFileSystem(FileSystem):
    """Files of an object store: S3, Google Cloud Storage, Azure Blob Storage and what speaks their protocols.

    A path is the name of a bucket or container, then the key. `create` and `replace` are one request each,
    and `create` is exclusive: a conditional PUT. Calls are not retried here, see `RetryingFileSystem`.

    A file from `open_output` is published by `FileOutput.close`. Up to the size of one part, 8 MiB, it is one
    exclusive PUT as well. A larger one is uploaded in parts, three at a time, of which memory holds five at
    most. No service can both do that and create exclusively through obstore, so a large file replaces one of
    the same name; its writers use unique names. An upload that is abandoned is aborted, and shows no object.
    If the process is killed meanwhile, S3 and Google Cloud Storage keep the invisible parts until a lifecycle
    rule of the bucket removes them.

    Parameters
    ----------
    clients
        Opens the buckets.
    scheme
        URL scheme of the files.
    """

    def __init__(self, clients: ObjectStoreClients, scheme: str) -> None:
        self._clients = clients
        self.scheme = scheme

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        if start == 0 and size is None:
            with self._client(path) as (client, key):
                return bytes(obstore.get(client, key).bytes())
        if size == 0:
            self.size(path)
            return b""
        return self.read_range(path, {"offset": start} if size is None else (start, start + size), None)[0]

    def read_range(self, path: str, span: Any, version: str | None) -> tuple[bytes, int, str | None]:
        """Read a range of a file.

        Parameters
        ----------
        span
            The range in obstore's form.
        version
            Version that the file must have, from an earlier call.

        Returns
        -------
        tuple
            The bytes, the size of the whole file, and its version.
        """
        options = {"range": span} | ({} if version is None else {"if_match": version})
        try:
            with self._client(path) as (client, key):
                result = obstore.get(client, key, options=cast(Any, options))
                return bytes(result.bytes()), result.meta["size"], result.meta["e_tag"]
        except ObjectStoreError as error:
            # The range begins behind the end of the file.
            if error.status == 416:
                return b"", 0, version
            raise

    def size(self, path: str) -> int:
        try:
            with self._client(path) as (client, key):
                return obstore.head(client, key)["size"]
        except FileNotFoundError:
            if self.is_directory(path):
                raise IsADirectoryError(path) from None
            raise

    def open_input(self, path: str) -> BinaryIO:
        return io.BufferedReader(_RangeInput(self, path))

    def open_output(self, path: str) -> FileOutput:
        return _Upload(self, path, self._clients.retries)

    def create(self, path: str, data: Buffer) -> None:
        self._put(path, _octets(data), len(data), "create")

    def create_of_parts(self, path: str, parts: Sequence[Buffer]) -> None:
        self._put(path, list(map(_octets, parts)), sum(map(len, parts)), "create")

    def replace(self, path: str, data: Buffer) -> None:
        self._put(path, _octets(data), len(data), "overwrite")

    def _put(self, path: str, data: Any, size: int, mode: Any) -> None:
        with self._client(path, Client.CALLS if size <= _PART_BYTES else Client.LARGE_CALLS) as (client, key):
            obstore.put(client, key, data, mode=mode, use_multipart=False)

    def upload(self, path: str, parts: Iterator[bytes], upload_id: str) -> None:
        """Write a whole file in parts, replacing an existing one; an error of the iterator aborts it."""
        with self._client(path, Client.UPLOADS) as (client, key):
            obstore.put(
                client,
                key,
                parts,
                attributes=cast(Any, {_UPLOAD: upload_id}),
                use_multipart=True,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_IN_FLIGHT,
            )

    def is_upload(self, path: str, upload_id: str) -> bool:
        """Return whether an upload has published the file, also if its answer was lost."""
        with self._client(path) as (client, key):
            attributes = cast(Any, obstore.get(client, key, options={"head": True}).attributes)
            return bool(attributes.get(_UPLOAD) == upload_id)

    def delete(self, path: str) -> None:
        with self._client(path) as (client, key):
            obstore.delete(client, key)

    def delete_files(self, paths: Sequence[str]) -> None:
        with contextlib.suppress(FileNotFoundError), self._client(paths[0], Client.UPLOADS) as (client, _):
            # Several in one request where the service can do that.
            obstore.delete(client, [_split(path)[1] for path in paths])
            return
        # The call ended at the first missing file.
        super().delete_files(paths)

    def delete_directory(self, path: str, *, recursive: bool = False) -> None:
        if recursive and (paths := [status.path for status in self.list_files(path)]):
            self.delete_files(paths)

    def make_directory(self, path: str) -> None:
        """Do nothing: directories are prefixes of file names."""

    def exists(self, path: str) -> bool:
        try:
            with self._client(path) as (client, key):
                obstore.head(client, key)
                return True
        except FileNotFoundError:
            return self.is_directory(path)

    def is_directory(self, path: str) -> bool:
        with self._client(path) as (client, key):
            return any(obstore.list(client, key or None, chunk_size=1))

    def list_files(self, path: str) -> Iterator[FileStatus]:
        bucket = _split(path)[0]
        with self._client(path) as (client, key):
            marker: FileStatus | None = None
            for page in obstore.list(client, key or None):
                for meta in page:
                    status = _status(bucket, meta)
                    # Hadoop and consoles make empty objects for directories; obstore drops the slash at the
                    # end.
                    if marker is not None and not status.path.startswith(marker.path + "/"):
                        yield marker
                    marker = None if status.size else status
                    if status.size:
                        yield status
            if marker is not None:
                yield marker

    def list_directory(self, path: str) -> list[FileStatus]:
        bucket = _split(path)[0]
        with self._client(path) as (client, key):
            listing = obstore.list_with_delimiter(client, key or None)
        directories = [
            FileStatus(f"{bucket}/{name}", 0, is_directory=True) for name in listing["common_prefixes"]
        ]
        # Not the object of the directory itself.
        return directories + [_status(bucket, meta) for meta in listing["objects"] if meta["path"] != key]

    @contextlib.contextmanager
    def _client(self, path: str, kind: Client = Client.CALLS) -> Iterator[tuple[Any, str]]:
        """Open the bucket of a path, and convert errors of the calls made with it."""
        bucket, key = _split(path)
        try:
            yield self._clients.open(bucket, kind), key
        except Exception as error:
            if "without LOCATION" in str(error):
                # The next try uses the bucket's region.
                self._clients.find_region(bucket)
            failure = converted(error, path, credentials=self._clients.credentials_error)
            failure = access_error(failure, self.url(path)) or failure
            if failure is error:
                raise
            # The driver's text may have a signature in it.
            raise failure from None


class _RangeInput(io.RawIOBase):
    """A file that is read by ranges, of which it holds one; sequential reads make them larger."""

    def __init__(self, files: ObjectStoreFileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self._position = 0
        self._next_bytes = _FIRST_READ_BYTES
        self._start = 0
        # A missing file is reported now.
        self._data, self._size, self._version = files.read_range(path, (0, _FIRST_READ_BYTES), None)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        if self._position >= self._size:
            return 0
        end = self._start + len(self._data)
        if not self._start <= self._position < end:
            is_sequential = self._position == end
            self._next_bytes = (
                min(_LARGEST_READ_BYTES, self._next_bytes * 2) if is_sequential else _FIRST_READ_BYTES
            )
            span = (self._position, self._position + self._next_bytes)
            self._data, _, _ = self._files.read_range(self._path, span, self._version)
            self._start = self._position
            if not self._data:
                raise OSError(f"{self._path} ended at byte {self._position} of {self._size}")
        at = self._position - self._start
        part = memoryview(self._data)[at : at + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)


class _AbandonedError(Exception):
    """Ends an upload."""


class _Upload(FileOutput):
    """A new object; a thread uploads its parts once it has more than one."""

    def __init__(self, files: ObjectStoreFileSystem, path: str, retries: int) -> None:
        self._files = files
        self._path = path
        self._retries = retries
        self._id = str(uuid.uuid4())
        self._pending: list[bytes | memoryview] = []
        self._pending_bytes = 0
        # Parts for the thread: None at the end, an error to abort the upload.
        self._parts: queue.Queue[bytes | Exception | None] = queue.Queue(1)
        self._thread: threading.Thread | None = None
        self._ended = False
        self._failure: Exception | None = None
        self._closed = False
        self._may_be_visible = False

    def write(self, data: Buffer) -> None:
        view = memoryview(_octets(data))
        for start in range(0, len(view), _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            # The caller may change another buffer than bytes.
            self._pending.append(piece if isinstance(data, bytes) else bytes(piece))
            self._pending_bytes += len(piece)
            if self._pending_bytes > (_PART_BYTES if self._thread is None else _PIECE_BYTES):
                self._flush()

    def write_parts(self, parts: Sequence[Buffer]) -> None:
        for part in parts:
            self.write(part)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._thread is None:
            self._publish_whole()
            return
        self._flush()
        self._may_be_visible = True
        self._hand_over(None)
        self._thread.join()
        if self._failure is not None:
            self._may_be_visible = self._is_published(self._failure)
            if not self._may_be_visible:
                raise self._failure

    def abandon(self) -> None:
        self._closed = True
        self._pending = []
        if self._thread is not None and self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._parts.get_nowait()
            with contextlib.suppress(queue.Full):
                self._parts.put_nowait(_AbandonedError())
            self._thread.join(_ABANDON_SECONDS)
        if self._may_be_visible:
            self._may_be_visible = False
            with contextlib.suppress(Exception):
                self._files.delete(self._path)

    def _publish_whole(self) -> None:
        pending, self._pending = self._pending, []
        try:
            self._may_be_visible = True
            # A retry after a lost answer finds its own file.
            RetryingFileSystem(self._files, self._retries).create_of_parts(self._path, pending or [b""])
        except FileExistsError:
            self._may_be_visible = False
            raise

    def _is_published(self, failure: Exception) -> bool:
        # The answer to the last request of the upload may be lost, and the upload unknown to its retry.
        try:
            return RetryingFileSystem(self._files, self._retries).run(
                "checking for", self._path, lambda: self._files.is_upload(self._path, self._id)
            )
        except FileNotFoundError:
            return False
        except OSError:
            raise failure from None

    def _flush(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"upload of {self._path}", daemon=True)
            self._thread.start()
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        if pending:
            self._hand_over(bytes(pending[0]) if len(pending) == 1 else b"".join(pending))

    def _hand_over(self, part: bytes | None) -> None:
        if self._ended and self._failure is not None:
            raise self._failure
        self._parts.put(part)
        heartbeat()

    def _run(self) -> None:
        try:
            self._files.upload(self._path, self._handed_over(), self._id)
        except Exception as error:  # noqa: BLE001 - the writer raises it
            self._failure = error
        self._ended = True
        # The writer may wait for a place.
        with contextlib.suppress(queue.Empty):
            self._parts.get_nowait()

    def _handed_over(self) -> Iterator[bytes]:
        while (part := self._parts.get()) is not None:
            if isinstance(part, Exception):
                raise part
            yield part


def _octets(data: Buffer) -> Buffer:
    """Return a buffer of unsigned bytes, which obstore asks for; Arrow's are signed."""
    return data.cast("B") if isinstance(data, memoryview) and data.format != "B" else data


def _split(path: str) -> tuple[str, str]:
    bucket, _, key = path.strip("/").partition("/")
    return bucket, key


def _status(bucket: str, meta: Any) -> FileStatus:
    return FileStatus(f"{bucket}/{meta['path']}", meta["size"], meta["last_modified"].timestamp())
