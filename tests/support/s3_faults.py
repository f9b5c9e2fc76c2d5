"""An S3 proxy that injects faults into chosen requests."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

KINDS = ("slow-down", "internal-error", "reset", "lost", "error-after")
"""Faults of a request: 503 ``SlowDown``, 500, a connection that is reset before the service has the request
or after it has served it, 500 after it has served it."""

# Besides, ``no-upload``: what a service answers that has ended the upload already.

_PAGES = {
    "slow-down": (503, "SlowDown", "Please reduce your request rate."),
    "internal-error": (500, "InternalError", "We encountered an internal error. Please try again."),
    "no-upload": (404, "NoSuchUpload", "The specified multipart upload does not exist."),
    "error-after": (500, "InternalError", "We encountered an internal error. Please try again."),
}


class FaultyS3:
    """The proxy: its URL, and the method, path and fault of each request since `inject`.

    Every request is delayed by a number of seconds, by default none.
    """

    def __init__(self, service: str) -> None:
        self.delay = 0.0
        self._service = urlsplit(service)
        self._lock = threading.Lock()
        self._faults: dict[int, str] = {}
        self.calls: list[tuple[str, str, str]] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with contextlib.suppress(ConnectionError):
                    super().handle_one_request()

            def log_message(self, *_: Any) -> None:
                pass

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    return lambda: proxy._serve(self)
                raise AttributeError(name)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def inject(self, faults: dict[int, str] | None = None) -> None:
        """Inject faults into requests by number from 1, and restart the count."""
        with self._lock:
            self._faults = faults or {}
            self.calls = []

    def inject_from(self, first: int, kind: str) -> None:
        """Inject a fault into all requests from a number on."""
        self.inject(dict.fromkeys(range(first, first + 10_000), kind))

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def forwarded(self, headers: Message) -> dict[str, str]:
        """Return the headers with which a request is passed on."""
        return {name: value for name, value in headers.items() if name.lower() != "transfer-encoding"}

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        with self._lock:
            kind = self._faults.get(len(self.calls) + 1, "")
            self.calls.append((handler.command, handler.path, kind))
        time.sleep(self.delay)
        if kind in ("", "lost", "error-after"):
            answer = self._forward(handler, body)
        if kind in ("reset", "lost"):
            _reset(handler)
            return
        if kind:
            status, code, message = _PAGES[kind]
            page = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
            answer = (status, [("Content-Type", "application/xml")], page.encode())
        status, headers, data = answer
        handler.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                handler.send_header(name, value)
        length = dict(headers).get("Content-Length") if handler.command == "HEAD" else None
        handler.send_header("Content-Length", length or str(len(data)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(data)

    def _forward(
        self, handler: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self._service.hostname or "", self._service.port, timeout=30)
        try:
            connection.request(handler.command, handler.path, body or None, self.forwarded(handler.headers))
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


def _reset(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # The files made of it keep it open otherwise.
    handler.rfile.close()
    handler.connection.shutdown(socket.SHUT_RD)
    handler.connection.close()


@contextmanager
def faulty_s3(service: str) -> Iterator[FaultyS3]:
    proxy = FaultyS3(service)
    try:
        yield proxy
    finally:
        proxy.stop()
