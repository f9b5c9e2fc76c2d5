"""Azurite, a server of Azure's blob service, from npm."""

from __future__ import annotations

import base64
import contextlib
import hmac
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Final

from tests.support.services.service import (
    Service,
    ServiceUnavailableError,
    answers,
    fetched,
    free_port,
    run_client,
    running,
)

VERSION: Final = "3.37.0"

_ACCOUNT: Final = "testaccount"
_KEY: Final = base64.b64encode(b"a key for tests alone").decode()


def fetch() -> Path:
    """Return the program, which Node runs."""
    if shutil.which("node") is None:
        raise ServiceUnavailableError("node is not installed")
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"]
    home = fetched(
        f"azurite-{VERSION}",
        lambda directory: run_client(
            ["npm", "install", f"azurite@{VERSION}", *options, "--prefix", str(directory)]
        ),
    )
    return home / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


@contextlib.contextmanager
def azurite() -> Iterator[Service]:
    """Start a blob service with an empty data directory."""
    program = fetch()
    with tempfile.TemporaryDirectory(prefix="azurite-") as scratch:
        port = free_port()
        url = f"http://127.0.0.1:{port}/{_ACCOUNT}"
        command = [
            *("node", str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port)),
            *("--location", scratch, "--silent", "--disableTelemetry"),
            # Clients may ask for a newer version of the API than it knows.
            "--skipApiVersionCheck",
        ]
        with running("Azurite", command, lambda: answers(url), {"AZURITE_ACCOUNTS": f"{_ACCOUNT}:{_KEY}"}):
            connection = (
                f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_KEY};BlobEndpoint={url};"
            )
            environment = {
                "AZURE_STORAGE_CONNECTION_STRING": connection,
                "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
                "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
            }
            yield Service("azurite", "abfs", url, environment, lambda name: _make_container(url, name))


def _make_container(url: str, name: str) -> str:
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    # Of the standard headers a request without a body needs none.
    signed = [
        *("PUT", *[""] * 11),
        *(f"{header}:{value}" for header, value in headers.items()),
        f"/{_ACCOUNT}/{_ACCOUNT}/{name}",
        "restype:container",
    ]
    digest = hmac.digest(base64.b64decode(_KEY), "\n".join(signed).encode(), "sha256")
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
    request = urllib.request.Request(f"{url}/{name}?restype=container", method="PUT", headers=headers)
    urllib.request.urlopen(request, timeout=30).close()
    return f"abfs://{name}"
