"""Tests of files of object stores through obstore, with S3's and Google Cloud Storage's protocols."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fsspec
import pytest

from spark_statestore.files import FileSystem, open_file_system, urls
from spark_statestore.files.object_store import ObjectStoreFileSystem
from spark_statestore.testing import FileSystemTests
from tests.support.s3 import S3_WARNINGS, client_of, environment_of, new_bucket, s3_service
from tests.support.s3_as_gcs import S3AsGcs, new_gcs_bucket, s3_as_gcs
from tests.support.s3_faults import FaultyS3, faulty_s3

pytest.importorskip("obstore")
pytest.importorskip("moto.server")

pytestmark = S3_WARNINGS

MIB = 1 << 20
PART = 8 * MIB


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with s3_service() as url:
        yield url


@pytest.fixture(scope="module")
def proxy(service: str) -> Iterator[FaultyS3]:
    with faulty_s3(service) as before_it:
        yield before_it


@pytest.fixture
def bucket(proxy: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> str:
    proxy.inject()
    return new_bucket(proxy.url, monkeypatch)


@pytest.fixture
def files(bucket: str) -> FileSystem:
    return driver_of(f"s3://{bucket}")


def driver_of(url: str) -> FileSystem:
    """Return the file system of a URL, without retries."""
    files: Any = open_file_system(url)[0]
    assert isinstance(files.wrapped, ObjectStoreFileSystem)
    return files.wrapped


def incomplete_uploads(proxy: FaultyS3, bucket: str) -> list[str]:
    uploads = client_of(proxy.url).list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    return [upload["Key"] for upload in uploads]


@contextmanager
def s3_of(handler: type[BaseHTTPRequestHandler], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Serve requests by a handler of this module, and configure this process for it."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    for name, value in environment_of(url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(urls, "_opened", {})
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint": url})
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    """A part of S3."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, body: bytes = b"", status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"ETag": '"x"', "Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class TestGcs(FileSystemTests):
    """The contract with Google Cloud Storage's names; S3's are in `tests.system.object_stores.test_s3`."""

    has_directories = False
    misses_what_is_deleted = False
    examples = 5

    @pytest.fixture(scope="class")
    def gcs(self, service: str) -> Iterator[S3AsGcs]:
        with s3_as_gcs(service) as before_it:
            yield before_it

    @pytest.fixture
    def bucket(self, service: str, gcs: S3AsGcs, monkeypatch: pytest.MonkeyPatch) -> str:
        return new_gcs_bucket(service, gcs, monkeypatch)

    @pytest.fixture
    def files(self, bucket: str) -> FileSystem:
        return driver_of(f"gs://{bucket}")

    @pytest.fixture
    def directory(self, bucket: str) -> str:
        return f"{bucket}/state"

    def test_large_file_is_uploaded_in_parts(self, files: FileSystem, root: str, gcs: S3AsGcs) -> None:
        gcs.inject()
        data = os.urandom(2 * PART + 1)
        output = files.open_output(f"{root}/large")
        for start in range(0, len(data), 3 * MIB):
            output.write(bytearray(data[start : start + 3 * MIB]))
        output.close()
        assert files.read(f"{root}/large") == data
        assert sum("partNumber" in path for _, path, _ in gcs.calls) == 3


def write(files: FileSystem, path: str, data: bytes) -> None:
    output = files.open_output(path)
    output.write(data)
    output.close()


# Writing


def test_file_of_one_part_is_one_exclusive_put(files: FileSystem, bucket: str, proxy: FaultyS3) -> None:
    for data in (b"", bytes(PART)):
        path = f"{bucket}/{len(data)}"
        proxy.inject()
        write(files, path, data)
        assert [method for method, _, _ in proxy.calls] == ["PUT"]
        with pytest.raises(FileExistsError):
            files.create(path, b"other")
        another = files.open_output(path)
        another.write(b"other")
        with pytest.raises(FileExistsError):
            another.close()
        # The file of the other writer stays.
        another.abandon()
        assert files.size(path) == len(data)


@pytest.mark.parametrize("retried", ["lost", "error-after"])
def test_stream_recognizes_its_file_after_a_lost_answer(
    files: FileSystem, bucket: str, proxy: FaultyS3, retried: str
) -> None:
    proxy.inject({1: retried})
    write(files, f"{bucket}/file", b"state")
    assert files.read(f"{bucket}/file") == b"state"


def test_upload_finds_its_file_after_a_lost_answer(files: FileSystem, bucket: str, proxy: FaultyS3) -> None:
    # The requests are: begin, two parts, end, which obstore repeats.
    proxy.inject({4: "lost", 5: "no-upload"})
    write(files, f"{bucket}/file", bytes(PART + 1))
    assert [method for method, path, _ in proxy.calls if "uploadId" not in path] == ["POST", "HEAD"]
    assert files.size(f"{bucket}/file") == PART + 1


def test_failed_upload_does_not_take_another_file_for_its_own(
    files: FileSystem, bucket: str, proxy: FaultyS3
) -> None:
    files.replace(f"{bucket}/file", b"another's")
    proxy.inject({4: "no-upload"})
    output = files.open_output(f"{bucket}/file")
    output.write(bytes(PART + 1))
    with pytest.raises(OSError, match="NoSuchUpload"):
        output.close()
    output.abandon()
    assert files.read(f"{bucket}/file") == b"another's"


def test_abandoned_upload_is_aborted(files: FileSystem, bucket: str, proxy: FaultyS3) -> None:
    output = files.open_output(f"{bucket}/file")
    for _ in range(5):
        output.write(bytes(4 * MIB))
    deadline = time.monotonic() + 30
    while not incomplete_uploads(proxy, bucket):
        assert time.monotonic() < deadline
    output.abandon()
    output.abandon()
    assert incomplete_uploads(proxy, bucket) == []
    assert list(files.list_files(bucket)) == []


def test_upload_to_a_missing_bucket_fails_at_a_write(files: FileSystem) -> None:
    output = files.open_output(f"missing-{uuid.uuid4()}/file")
    with pytest.raises(OSError, match="does not exist"):
        output.write(bytes(20 * PART))
    output.abandon()


class Stalling(Handler):
    """A service that keeps nothing, and takes parts and aborts uploads only after an event."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer(
            b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
            if "uploads" in self.path
            else b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"
        )

    def do_PUT(self) -> None:
        server: Any = self.server
        with server.lock:
            server.now += 1
            server.most = max(server.most, server.now)
        server.event.wait(60)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with server.lock:
            server.byte_count += len(body)
            server.now -= 1
        self.answer()

    def do_DELETE(self) -> None:
        server: Any = self.server
        server.event.wait(60)
        self.answer()


@pytest.fixture
def stalling(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with s3_of(Stalling, monkeypatch) as server:
        server.event, server.lock = threading.Event(), threading.Lock()
        server.now = server.most = server.byte_count = 0
        yield server
        server.event.set()


def test_upload_holds_few_parts_and_sends_three_at_a_time(stalling: Any) -> None:
    output = driver_of("s3://bucket").open_output("bucket/file")
    size = 0

    def write() -> None:
        nonlocal size
        for _ in range(200):
            output.write(bytes(MIB))
            size += MIB

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while stalling.now < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.5)
    stopped_at = size
    assert stalling.now == 3
    assert 3 * PART <= stopped_at <= 5 * PART
    time.sleep(0.5)
    assert size == stopped_at
    stalling.event.set()
    thread.join(30)
    output.close()
    assert stalling.byte_count == size == 200 * MIB
    assert stalling.most == 3


def test_upload_to_a_hung_service_can_be_abandoned(stalling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_statestore.files.object_store._ABANDON_SECONDS", 0.2)
    output = driver_of("s3://bucket").open_output("bucket/file")
    output.write(bytes(2 * PART))
    start = time.monotonic()
    output.abandon()
    assert time.monotonic() - start < 5


# Reading


def test_open_input_reads_ahead_and_seeks(files: FileSystem, bucket: str, proxy: FaultyS3) -> None:
    data = os.urandom(40 * MIB)
    files.create(f"{bucket}/small", b"0123456789")
    files.create(f"{bucket}/file", data)
    proxy.inject()
    with files.open_input(f"{bucket}/small") as source:
        assert source.read() == b"0123456789"
    assert [method for method, _, _ in proxy.calls] == ["GET"]
    proxy.inject()
    with files.open_input(f"{bucket}/file") as source:
        for start in range(0, len(data), 64 << 10):
            assert source.read(64 << 10) == data[start : start + (64 << 10)]
        # Requests of 1, 2, 4, 8, 8, 8, 8 and 1 MiB.
        assert len(proxy.calls) == 8
        for start in (3, 30 * MIB, 5):
            assert source.seek(start) == start
            assert source.read(9) == data[start : start + 9]
        assert source.seek(-2, io.SEEK_END) == len(data) - 2
        assert source.read() == data[-2:]
        assert source.seek(len(data) + 5)
        assert source.read() == b""


def test_open_input_refuses_a_file_that_was_replaced_meanwhile(files: FileSystem, bucket: str) -> None:
    files.create(f"{bucket}/file", bytes(2 * MIB))
    with files.open_input(f"{bucket}/file") as source:
        source.read(MIB)
        files.replace(f"{bucket}/file", b"x" * 2 * MIB)
        with pytest.raises(OSError, match="was replaced while it was read"):
            source.read(1)


def test_name_with_a_control_character_is_refused(files: FileSystem, bucket: str) -> None:
    for call in (files.read, files.exists, files.size):
        with pytest.raises(OSError, match="an object cannot have this name"):
            call(f"{bucket}/a\nb")


# Listings and buckets


def test_listings_leave_out_objects_of_directories(files: FileSystem, bucket: str, proxy: FaultyS3) -> None:
    client = client_of(proxy.url)
    for key in ("logs/", "logs/offsets/", "logs/offsets/0", "logs/empty"):
        client.put_object(Bucket=bucket, Key=key)
    assert [status.path for status in files.list_files(f"{bucket}/logs")] == [
        f"{bucket}/logs/empty",
        f"{bucket}/logs/offsets/0",
    ]
    assert {(status.path, status.is_directory) for status in files.list_directory(f"{bucket}/logs")} == {
        (f"{bucket}/logs/empty", False),
        (f"{bucket}/logs/offsets", True),
    }
    assert [status.path for status in files.list_directory(bucket)] == [f"{bucket}/logs"]


def test_bucket_of_another_region_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    regions: list[str] = []

    class Elsewhere(Handler):
        def do_HEAD(self) -> None:
            region = self.headers["Authorization"].split("/")[2]
            regions.append(region)
            headers = {"x-amz-bucket-region": "eu-west-1", "Content-Length": "7"}
            headers["Last-Modified"] = "Mon, 23 Nov 2026 05:00:00 GMT"
            self.answer(status=200 if region == "eu-west-1" else 301, headers=headers)

    with s3_of(Elsewhere, monkeypatch):
        files, path = open_file_system("s3://bucket/file")
        assert files.size(path) == 7
        assert (regions[0], regions[-1]) == ("us-east-1", "eu-west-1")
        regions.clear()
        assert files.size(path) == 7
        assert regions == ["eu-west-1"]


def test_registered_driver_is_used_instead_of_obstore(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    class Own(MemoryFileSystem):
        protocol = ("s3", "s3a")

    monkeypatch.setattr(urls, "_opened", {})
    fsspec.register_implementation("s3", Own, clobber=True)
    try:
        with caplog.at_level(logging.WARNING):
            files: Any = open_file_system("s3://bucket/x")[0]
        assert isinstance(files.wrapped._fs._fs, Own)
        assert not caplog.records
    finally:
        del sys.modules["fsspec.registry"]._registry["s3"]
