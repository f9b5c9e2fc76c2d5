"""An S3 service on this machine."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import fsspec
import pytest

from spark_statestore.files import drivers, urls

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
    # fsspec does the same when it is imported.
    monkeypatch.setitem(fsspec.config.conf, "s3", {})
    fsspec.config.set_conf_env(fsspec.config.conf)
    name = f"bucket-{uuid.uuid4()}"
    fsspec.filesystem("s3").mkdir(name)
    return name


def use_driver(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open S3 through ``obstore``, or through the ``s3fs`` of an environment without obstore, during a test."""
    is_installed = drivers._is_installed
    monkeypatch.setattr(
        drivers, "_is_installed", lambda module: module in (name, "botocore") and is_installed(module)
    )
    monkeypatch.setattr(urls, "_opened", {})
