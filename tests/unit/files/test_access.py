"""Tests of access errors: bucket, cause and remedy at every entry point."""

from __future__ import annotations

import json
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_statestore
from spark_statestore.errors import StateStoreError, StorageAccessError
from spark_statestore.files import FileSystem, open_file_system
from spark_statestore.files.access import access_error
from spark_statestore.options import StorageOptions
from spark_statestore.storage import CheckpointName
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import StoreId
from tests.support.s3 import S3_WARNINGS, new_bucket, s3_service
from tests.unit.cli.commands import node, output_of
from tests.unit.store.stores import commit

pytest.importorskip("moto.server")

pytestmark = S3_WARNINGS

CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_service() as url:
        yield url


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    return new_bucket(endpoint, monkeypatch)


def forget_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the next call build a client of its own from the environment."""
    monkeypatch.setattr("spark_statestore.files.urls._opened", {})


@pytest.fixture
def without_credentials(bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Create a bucket, and remove all credentials except those of the machine's metadata service."""
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    forget_clients(monkeypatch)
    return bucket


@pytest.fixture
def without_rights(endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of a service that knows no user of this name."""
    forget_clients(monkeypatch)

    def accepted(calls: str) -> None:
        headers = {"Content-Type": "text/plain"}
        urllib.request.urlopen(
            urllib.request.Request(f"{endpoint}/moto-api/reset-auth", calls.encode(), headers), timeout=10
        ).close()

    accepted("0")
    yield bucket
    accepted("inf")


def write(files: FileSystem, path: str) -> None:
    output = files.open_output(path)
    output.write(b"1")
    output.close()


CALLS: dict[str, Callable[[FileSystem, str], Any]] = {
    "read": lambda files, path: files.read(f"{path}/a"),
    "size": lambda files, path: files.size(f"{path}/a"),
    "open_input": lambda files, path: files.open_input(f"{path}/a"),
    "open_output": lambda files, path: write(files, f"{path}/a"),
    "create": lambda files, path: files.create(f"{path}/a", b"1"),
    "create_of_parts": lambda files, path: files.create_of_parts(f"{path}/a", [b"1"]),
    "replace": lambda files, path: files.replace(f"{path}/a", b"1"),
    "delete": lambda files, path: files.delete(f"{path}/a"),
    "exists": lambda files, path: files.exists(f"{path}/a"),
    "is_directory": lambda files, path: files.is_directory(path),
    "list_files": lambda files, path: list(files.list_files(path)),
}


def check_no_credentials(message: str, bucket: str) -> None:
    assert f"no credentials were found for the bucket {bucket!r}" in message
    for remedy in ("AWS_ACCESS_KEY_ID", "~/.aws/credentials", "~/.config/fsspec", "an instance role"):
        assert remedy in message
    assert ".." not in message


def test_access_error_of_denied_call_names_url_and_permissions(without_rights: str) -> None:
    files, path = open_file_system(f"s3://{without_rights}/orders")
    for call in CALLS.values():
        with pytest.raises(
            StorageAccessError, match=rf"^access to s3://{without_rights}/orders.* is denied \(.+\)\. "
        ) as raised:
            call(files, path)
        assert f"on the bucket {without_rights!r} (they need s3:GetObject" in str(raised.value)


@pytest.mark.usefixtures("bucket")
def test_access_error_names_a_missing_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_clients(monkeypatch)
    missing = f"missing-{uuid.uuid4()}"
    files, path = open_file_system(f"s3://{missing}/orders")
    for name in CALLS.keys() - {"exists", "is_directory"}:
        with pytest.raises(StorageAccessError, match=f"the bucket '{missing}' of .* does not exist"):
            CALLS[name](files, path)


def test_every_entry_point_raises_the_same_access_error(without_credentials: str, tmp_path: Path) -> None:
    url = f"s3://{without_credentials}/orders"
    store = StoreDirectory(StoreId(0, 0), f"{url}/0/0", StorageOptions())
    for run in (
        lambda: spark_statestore.read_state(url),
        lambda: spark_statestore.verify(url),
        lambda: spark_statestore.gc(url),
        lambda: spark_statestore.savepoint(url, str(tmp_path)),
        lambda: spark_statestore.load_savepoint(url),
        lambda: spark_statestore.list_savepoints(url),
        lambda: spark_statestore.restore(url, str(tmp_path / "local")),
        lambda: store.load(CheckpointName(1)),
        lambda: commit(store, CheckpointName(1), {b"k": b"v"}),
    ):
        start = time.monotonic()
        with pytest.raises(StorageAccessError) as raised:
            run()
        check_no_credentials(str(raised.value), without_credentials)
        # The machine's metadata service was queried, too, and does not answer here.
        assert time.monotonic() - start < 30
    for command in (["ls", url], ["verify", url], ["savepoint", "list", url], ["get", url, '"ann"']):
        text = output_of(*command, code=1)
        assert text.startswith("error: no credentials were found")
        assert text.count("\n") == 1
        check_no_credentials(text, without_credentials)
        error = node(*command, code=1)["error"]
        assert error["type"] == "StorageAccessError"
        check_no_credentials(error["message"], without_credentials)


def raised_by(module: str, name: str, message: str, **attributes: object) -> Exception:
    """An error of a driver that need not be installed."""
    kind = type(name, (Exception,), {"__module__": module} | attributes)
    return kind(message)


@pytest.mark.parametrize(
    ("error", "url", "expected"),
    [
        (raised_by("google.auth.exceptions", "DefaultCredentialsError", "None found."),
         "gcs://b/x", "GOOGLE_APPLICATION_CREDENTIALS"),
        (raised_by("gcsfs.retry", "HttpError", "Forbidden", code=403),
         "gcs://b/x", "access to gcs://b/x is denied"),
        (raised_by("azure.core.exceptions", "ClientAuthenticationError", "no", status_code=401),
         "abfs://c/x", "AZURE_STORAGE_ACCOUNT_KEY"),
        (raised_by("azure.core.exceptions", "ResourceNotFoundError", "no", error_code="ContainerNotFound"),
         "az://c/x", "the container 'c' of az://c/x does not exist"),
        (PermissionError("No."), "sftp://host/x", "access to sftp://host/x is denied (PermissionError: No)."),
    ],
)  # fmt: skip
def test_access_error_recognizes_errors_of_other_drivers(error: Exception, url: str, expected: str) -> None:
    outer = OSError("call failed")
    outer.__cause__ = error
    for cause in (error, outer):
        converted = access_error(cause, url)
        assert isinstance(converted, StateStoreError)
        assert expected in str(converted)
        assert ".." not in json.dumps(str(converted))


@pytest.mark.parametrize(
    "error", [OSError("disk full"), FileNotFoundError("x"), ValueError("x"), TimeoutError()]
)
def test_access_error_ignores_other_failures(error: Exception) -> None:
    assert access_error(error, "s3://b/x") is None
