"""An S3 service on this machine, and its objects as another client than the store's sees them."""

from __future__ import annotations

import functools
import logging
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import botocore.session
import fsspec
import pytest

from spark_statestore.files import urls

S3_WARNINGS = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""Marks that ignore the warnings that the test server and clients of storage services raise."""


@contextmanager
def s3_service(address: str = "127.0.0.1") -> Iterator[str]:
    """Yield the URL of a service that ends with the context."""
    from moto.server import ThreadedMotoServer

    # It logs every request otherwise.
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address=address, port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def environment_of(url: str) -> dict[str, str]:
    """Return the environment variables that a process needs to use the service."""
    return {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "FSSPEC_S3_ENDPOINT_URL": url,
    }


def new_bucket(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Create a bucket, configure this process and its children for it during a test, and return its name."""
    for name, value in environment_of(url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(urls, "_opened", {})
    # fsspec does the same when it is imported.
    monkeypatch.setitem(fsspec.config.conf, "s3", {})
    fsspec.config.set_conf_env(fsspec.config.conf)
    name = f"bucket-{uuid.uuid4()}"
    client_of(url).create_bucket(Bucket=name)
    return name


def client_of(url: str | None = None) -> Any:
    """Return a client of botocore's, by default for the service that this process is configured for."""
    return _client_of(url or os.environ["FSSPEC_S3_ENDPOINT_URL"])


# To make a client takes a tenth of a second of processor time.
@functools.cache
def _client_of(endpoint: str) -> Any:
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    return botocore.session.Session().create_client("s3", endpoint_url=endpoint, **keys)


def list_objects(path: str) -> list[str]:
    """Return the paths of the objects below a path, which begins with the bucket."""
    bucket, _, prefix = path.partition("/")
    pages = (
        client_of().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix.rstrip("/") + "/")
    )
    return [f"{bucket}/{item['Key']}" for page in pages for item in page.get("Contents", ())]


def put_object(path: str, data: bytes) -> None:
    bucket, _, key = path.partition("/")
    client_of().put_object(Bucket=bucket, Key=key, Body=data)


def delete_object(path: str) -> None:
    bucket, _, key = path.partition("/")
    client_of().delete_object(Bucket=bucket, Key=key)
