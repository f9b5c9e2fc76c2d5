"""Requests to MinIO, each with its kind and bytes, from the server's own trace."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from tests.support.services import Service

KINDS = ("PUT", "GET", "HEAD", "LIST", "COPY", "DELETE", "multipart", "other")

_MULTIPART = ("NewMultipartUpload", "PutObjectPart", "CompleteMultipartUpload", "AbortMultipartUpload")
_KINDS = {
    "PutObject": "PUT",
    "GetObject": "GET",
    "HeadObject": "HEAD",
    "HeadBucket": "HEAD",
    "CopyObject": "COPY",
    "CopyObjectPart": "COPY",
    "DeleteObject": "DELETE",
    "DeleteMultipleObjects": "DELETE",
} | dict.fromkeys(_MULTIPART, "multipart")

_SETTLED_SECONDS = 1.0


@dataclass(frozen=True)
class Request:
    """A request: one of `KINDS`, its bucket, and the bytes that the server received and sent.

    The bytes include headers.
    """

    kind: str
    bucket: str
    size: int


class Trace:
    """The requests that a server serves while its trace is read."""

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self.error: Exception | None = None

    def add(self, line: bytes) -> None:
        """Add a line of the server's answer."""
        self._requests.append(parse(json.loads(line)))

    def mark(self) -> int:
        """Wait until the last batch's background work is over; return the number of requests.

        It is that of the requests up to then.
        """
        while True:
            before = len(self._requests)
            time.sleep(_SETTLED_SECONDS)
            if self.error is not None:
                raise RuntimeError("the server's trace has ended") from self.error
            if len(self._requests) == before:
                return before

    def since(self, mark: int) -> list[Request]:
        """Return the requests after a mark."""
        return self._requests[mark:]


def parse(event: dict[str, Any]) -> Request:
    """Return the request of an event of the trace."""
    name = event["funcname"].removeprefix("s3.")
    http = event["http"]
    bucket = http["request"]["path"].lstrip("/").partition("/")[0]
    kind = _KINDS.get(name, "LIST" if name.startswith("ListObject") else "other")
    stats = http["stats"] if "stats" in http else event["stats"]
    return Request(kind, bucket, stats["inputbytes"] + stats["outputbytes"])


@contextmanager
def tracing(service: Service) -> Iterator[Trace]:
    """Read the trace of all requests for S3 for the duration of the block."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    endpoint = service.endpoint
    request = AWSRequest("GET", f"{endpoint}/minio/admin/v3/trace?s3=true")
    keys = (service.environment[f"AWS_{name}"] for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
    S3SigV4Auth(Credentials(*keys), "s3", "us-east-1").add_auth(request)
    connection = HTTPConnection(urlsplit(endpoint).netloc)
    connection.request("GET", request.url.removeprefix(endpoint), headers=dict(request.headers))
    answer = connection.getresponse()
    if answer.status != HTTPStatus.OK:
        raise RuntimeError(f"the server refused to trace its requests: {answer.status} {answer.read()!r}")
    trace = Trace()

    def read() -> None:
        try:
            for line in answer:
                trace.add(line)
            raise EOFError("the server has closed the connection")
        except Exception as error:  # noqa: BLE001 - raised where the trace is used
            trace.error = error

    reader = threading.Thread(target=read, name="trace", daemon=True)
    reader.start()
    try:
        yield trace
    finally:
        connection.sock.shutdown(socket.SHUT_RDWR)
        reader.join()
        connection.close()


def by_kind(requests: list[Request]) -> Counter[str]:
    """Count requests by kind."""
    return Counter(request.kind for request in requests)
