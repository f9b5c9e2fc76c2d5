"""MinIO, a server of S3, compiled from its Go module."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.s3 import environment_of
from tests.support.services.service import Service, answers, free_port, go_program, running

VERSION: Final = "v0.0.0-20260212201848-7aac2a2c5b7c"

_KEY: Final = "test-access-key"
_SECRET: Final = "test-secret-key"


def fetch() -> Path:
    return go_program("github.com/minio/minio", VERSION)


@contextlib.contextmanager
def minio() -> Iterator[Service]:
    """Start a server with an empty data directory."""
    program = fetch()
    with tempfile.TemporaryDirectory(prefix="minio-") as scratch:
        address = f"127.0.0.1:{free_port()}"
        url = f"http://{address}"
        command = [str(program), "server", "--quiet", "--address", address, "--certs-dir", f"{scratch}/certs"]
        settings = {
            "MINIO_ROOT_USER": _KEY,
            "MINIO_ROOT_PASSWORD": _SECRET,
            # Neither a console on another port nor requests to the vendor.
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        }
        with running(
            "MinIO", [*command, f"{scratch}/data"], lambda: answers(f"{url}/minio/health/ready"), settings
        ):
            keys = {"AWS_ACCESS_KEY_ID": _KEY, "AWS_SECRET_ACCESS_KEY": _SECRET}
            yield Service(
                "minio", "s3", url, environment_of(url) | keys, lambda name: _make_bucket(url, name)
            )


def _make_bucket(url: str, name: str) -> str:
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=_KEY,
        aws_secret_access_key=_SECRET,
    )
    client.create_bucket(Bucket=name)
    client.close()
    return f"s3://{name}"
