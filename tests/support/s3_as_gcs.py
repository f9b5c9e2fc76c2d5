"""Google Cloud Storage's XML interface before an S3 service without checks.

It has what is S3's under other names.
"""

from __future__ import annotations

import types
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler
from urllib.parse import quote, unquote

import fsspec
import pytest

from spark_statestore.files import urls
from tests.support.s3_faults import FaultyS3

_SIGNED = (
    "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
)


class S3AsGcs(FaultyS3):
    """The proxy."""

    def forwarded(self, headers: Message) -> dict[str, str]:
        result = super().forwarded(headers)
        assert result.pop("authorization") == "Bearer token-1"
        if (generation := result.pop("x-goog-if-generation-match", None)) is not None:
            assert generation == "0"
            result["If-None-Match"] = "*"
        return result | {"Authorization": _SIGNED}

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        # The service does not decode a bucket's name.
        path, question, query = handler.path.partition("?")
        handler.path = quote(unquote(path)) + question + query
        super()._serve(handler)


@contextmanager
def s3_as_gcs(service: str) -> Iterator[S3AsGcs]:
    proxy = S3AsGcs(service)
    try:
        yield proxy
    finally:
        proxy.stop()


def new_gcs_bucket(service: str, proxy: S3AsGcs, monkeypatch: pytest.MonkeyPatch) -> str:
    """Create a bucket, configure this process to use it through the proxy, and return its name."""
    credentials = types.SimpleNamespace(token=None, expiry=None)
    credentials.refresh = lambda _: setattr(credentials, "token", "token-1")
    monkeypatch.setattr("google.auth.default", lambda scopes: (credentials, None))
    monkeypatch.setitem(fsspec.config.conf, "gcs", {"base_url": proxy.url})
    monkeypatch.setattr(urls, "_opened", {})
    name = f"bucket-{uuid.uuid4()}"
    urllib.request.urlopen(
        urllib.request.Request(f"{service}/{name}", method="PUT", headers={"Authorization": _SIGNED}),
        timeout=10,
    ).close()
    return name
