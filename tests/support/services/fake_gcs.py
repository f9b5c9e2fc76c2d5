"""fake-gcs-server, a server of Google Cloud Storage, compiled from its Go module."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.services.service import Service, answers, free_port, go_program, running

VERSION: Final = "v1.56.1"


def fetch() -> Path:
    """Return the program."""
    return go_program("github.com/fsouza/fake-gcs-server", VERSION)


@contextlib.contextmanager
def fake_gcs() -> Iterator[Service]:
    """Start a server that keeps its objects in memory."""
    program = fetch()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        *(str(program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"),
        # Clients continue an upload at the address that it names.
        *("-public-host", f"127.0.0.1:{port}", "-external-url", url, "-log-level", "warn"),
    ]
    with running("fake-gcs-server", command, lambda: answers(f"{url}/_internal/healthcheck")):
        environment = {
            "STORAGE_EMULATOR_HOST": url,
            "FSSPEC_GCS_TOKEN": "anon",
            # The server lacks the XML interface, with which obstore writes; this is an option of gcsfs alone.
            "FSSPEC_GCS_CONSISTENCY": "size",
            # gcsfs asks for a bucket's type through gRPC otherwise, which the server does not have.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
        yield Service("fake-gcs", "gs", url, environment, lambda name: _make_bucket(url, name))


def _make_bucket(url: str, name: str) -> str:
    request = urllib.request.Request(
        f"{url}/storage/v1/b?project=test",
        json.dumps({"name": name}).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=30).close()
    return f"gs://{name}"
