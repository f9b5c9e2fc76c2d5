"""Tests of the way from fsspec's configuration and the environment to obstore's, and of obstore's errors."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import pytest

from spark_statestore.errors import (
    MissingDriverError,
    StorageAccessError,
    StorageUnavailableError,
    StorageURLError,
)
from spark_statestore.files import FsspecFileSystem, check_url, drivers, open_file_system, urls
from spark_statestore.files.access import access_error
from spark_statestore.files.object_store_clients import UnsupportedOptionError
from spark_statestore.files.object_store_cloud import AzureClients, GcsClients
from spark_statestore.files.object_store_errors import converted
from spark_statestore.files.object_store_s3 import S3Clients
from spark_statestore.files.transient import is_transient
from tests.support.paths import ROOT

obstore = pytest.importorskip("obstore")

KEYS = {"AWS_ACCESS_KEY_ID": "env", "AWS_SECRET_ACCESS_KEY": "secret"}
REGION = KEYS | {"AWS_DEFAULT_REGION": "eu-west-1"}
CONNECTION = (
    "DefaultEndpointsProtocol=https;AccountName=acct;AccountKey=a2V5PQ==;EndpointSuffix=core.windows.net"
)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove what could configure a driver."""
    for name in os.environ:
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(fsspec.config, "conf", {})
    monkeypatch.setattr(urls, "_opened", {})


# S3


@pytest.mark.parametrize(
    ("environ", "options", "bucket", "expected"),
    [
        (REGION, {}, "bucket", ("https://bucket.s3.eu-west-1.amazonaws.com", True, "eu-west-1")),
        (REGION, {}, "dots.in.it", ("https://s3.eu-west-1.amazonaws.com", False, "eu-west-1")),
        (KEYS, {"client_kwargs": {"region_name": "cn-north-1"}}, "bucket", ("https://bucket.s3.cn-north-1.amazonaws.com.cn", True, "cn-north-1")),
        (REGION | {"AWS_USE_FIPS_ENDPOINT": "true"}, {}, "bucket", ("https://bucket.s3-fips.eu-west-1.amazonaws.com", True, "eu-west-1")),
        (REGION | {"AWS_ENDPOINT_URL_S3": "http://minio:9000"}, {}, "bucket", ("http://minio:9000", False, "eu-west-1")),
        (REGION, {"endpoint_url": "http://minio:9000/below"}, "bucket", ("http://minio:9000/below", False, "eu-west-1")),
        (KEYS, {"client_kwargs": {"endpoint_url": "http://minio:9000"}}, "bucket", ("http://minio:9000", False, "us-east-1")),
        (
            REGION,
            {"endpoint_url": "http://minio:9000", "config_kwargs": {"s3": {"addressing_style": "virtual"}}},
            "bucket",
            ("http://bucket.minio:9000", True, "eu-west-1"),
        ),
        (REGION, {"config_kwargs": {"s3": {"addressing_style": "path"}}}, "bucket", ("https://s3.eu-west-1.amazonaws.com", False, "eu-west-1")),
        (REGION, {"use_ssl": False}, "bucket", ("http://bucket.s3.eu-west-1.amazonaws.com", True, "eu-west-1")),
    ],
)  # fmt: skip
def test_s3_endpoint_and_region_are_those_of_botocore(
    environ: dict[str, str],
    options: dict[str, Any],
    bucket: str,
    expected: tuple[str, bool, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    config = S3Clients(options, 5)._settings_of(bucket).config
    assert config["endpoint"] == config["aws_endpoint_url_s3"]
    assert (config["endpoint"], config["virtual_hosted_style_request"], config["region"]) == expected


def test_s3_options_are_translated(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_bytes(b"certificate")
    options = {
        "key": "k",
        "secret": "s",
        "token": "t",
        "requester_pays": True,
        "s3_additional_kwargs": {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "id"},
        "client_kwargs": {"region_name": "eu-west-1", "verify": str(authority)},
        "config_kwargs": {"retries": {"total_max_attempts": 3}, "read_timeout": 7, "connect_timeout": 2},
        "default_block_size": 5,
        "version_aware": False,
    }
    clients = S3Clients(options, 5)
    settings = clients._settings_of("b")
    assert settings.options == {"root_certificate": b"certificate"}
    assert settings.config["request_payer"] is True
    assert settings.config["server_side_encryption"] == "aws:kms"
    assert settings.config["sse_kms_key_id"] == "id"
    assert (clients.retries, clients._read_seconds, clients._connect_seconds) == (2, 7, 2)
    assert S3Clients({}, 5).retries == 5
    assert S3Clients({"config_kwargs": {"retries": {"max_attempts": 4}}}, 5).retries == 4
    credentials = settings.credential_provider()
    assert credentials == {"access_key_id": "k", "secret_access_key": "s", "token": "t", "expires_at": None}


def test_s3_anonymous_access_is_not_signed() -> None:
    settings = S3Clients({"anon": True, "endpoint_url": "http://minio:9000"}, 5)._settings_of("b")
    assert settings.config["skip_signature"] is True
    assert settings.credential_provider is None


def test_s3_profile_has_temporary_credentials_that_are_fetched_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = {"Version": 1, "AccessKeyId": "k", "SecretAccessKey": "s", "SessionToken": "t"}
    answer["Expiration"] = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    (tmp_path / "answer").write_text(json.dumps(answer))
    (tmp_path / "config").write_text(
        f"[profile p]\nregion = eu-north-1\ncredential_process = cat {tmp_path}/answer\nendpoint_url = http://profile:1\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for options, profile in (({"profile": "p"}, ""), ({}, "p")):
        if profile:
            monkeypatch.setenv("AWS_PROFILE", profile)
        settings = S3Clients(options, 5)._settings_of("b")
        assert settings.config["region"] == "eu-north-1"
        assert settings.config["endpoint"] == "http://profile:1"
        credentials = settings.credential_provider()
        assert (credentials["access_key_id"], credentials["token"]) == ("k", "t")
        # botocore renews them ten minutes before they expire.
        assert timedelta(minutes=5) < credentials["expires_at"] - datetime.now(UTC) <= timedelta(minutes=10)


# Azure and Google Cloud Storage


@pytest.mark.parametrize(
    ("options", "host", "expected"),
    [
        ({"account_name": "a", "account_key": "k"}, "", {"account_name": "a", "account_key": "k"}),
        ({"sas_token": "?sv=1&sig=2"}, "acct.dfs.core.windows.net", {"account_name": "acct", "sas_key": "sv=1&sig=2"}),
        ({"connection_string": CONNECTION}, "", {"account_name": "acct", "account_key": "a2V5PQ=="}),
        (
            {"connection_string": CONNECTION.replace("windows.net", "chinacloudapi.cn")},
            "",
            {"account_name": "acct", "account_key": "a2V5PQ==", "endpoint": "https://acct.blob.core.chinacloudapi.cn"},
        ),
        (
            {"connection_string": "BlobEndpoint=http://127.0.0.1:1/acct;SharedAccessSignature=sv=1&sig=2;AccountName=acct"},
            "",
            {"account_name": "acct", "sas_key": "sv=1&sig=2", "endpoint": "http://127.0.0.1:1/acct"},
        ),
        ({"connection_string": "UseDevelopmentStorage=true"}, "", {"account_name": "devstoreaccount1", "use_emulator": True}),
        (
            {"tenant_id": "t", "client_id": "c", "client_secret": "s"},
            "acct.dfs.core.usgovcloudapi.net",
            {
                "tenant_id": "t", "client_id": "c", "client_secret": "s", "account_name": "acct",
                "endpoint": "https://acct.blob.core.usgovcloudapi.net",
            },
        ),
        ({"anon": True, "account_host": "acct.blob.core.windows.net"}, "", {"account_name": "acct", "skip_signature": True}),
    ],
)  # fmt: skip
def test_azure_options_are_translated(options: dict[str, Any], host: str, expected: dict[str, Any]) -> None:
    assert AzureClients(options, 5, host)._settings_of("c").config == expected


def test_azure_account_is_that_of_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", CONNECTION)
    monkeypatch.setattr(drivers, "_is_installed", lambda module: module == "obstore")
    first, path = open_file_system("abfss://c@one.dfs.core.windows.net/a b/50%25")
    other, _ = open_file_system("abfss://c@two.dfs.core.windows.net/a b/50%25")
    assert path == "c/a b/50%25"
    configs = [files.wrapped._clients._config for files in (first, other)]  # type: ignore[attr-defined]
    assert [config["account_name"] for config in configs] == ["one", "two"]
    assert first.url(path) == "abfs://c/a b/50%25"
    assert open_file_system("az://c/x")[0].url("c/x") == "az://c/x"


def test_gcs_token_may_be_a_file_or_its_content(tmp_path: Path) -> None:
    user = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    (tmp_path / "key.json").write_text(json.dumps(user))
    for token in (user, str(tmp_path / "key.json")):
        clients = GcsClients({"token": token, "endpoint_url": "http://gcs:1"}, 5)
        assert clients._settings_of("b").config == {"base_url": "http://gcs:1"}
        assert clients._credentials.refresh_token == "r"


def test_gcs_without_credentials_names_the_remedies() -> None:
    files, path = open_file_system("gs://bucket/x", retries=0)
    with pytest.raises(
        StorageAccessError, match=r"no credentials were found for the bucket 'bucket'.*GOOGLE_APPL"
    ):
        files.read(path)


def test_option_with_a_wrong_value_is_named() -> None:
    for scheme, options, reason in (
        ("gcs", {"token": "/no/such/file"}, "No such file.*/no/such/file"),
        ("s3", {"config_kwargs": {"read_timeout": "soon"}}, "could not convert.*soon"),
    ):
        fsspec.config.conf[scheme] = options
        with pytest.raises(StorageUnavailableError, match=f"{scheme}://b/x' cannot be opened: .*{reason}"):
            open_file_system(f"{scheme}://b/x")


# Options that obstore lacks

REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("s3", "s3fs", {"session": "own"}, "the option 'session' of s3fs"),
    ("s3", "s3fs", {"version_aware": True}, "the option 'version_aware' of s3fs"),
    (
        "s3",
        "s3fs",
        {"client_kwargs": {"api_version": "1"}},
        "the option 'api_version' of s3fs's client_kwargs",
    ),
    (
        "s3",
        "s3fs",
        {"config_kwargs": {"proxies": {"http": "p"}}},
        "the option 'proxies' of s3fs's config_kwargs",
    ),
    ("s3", "s3fs", {"config_kwargs": {"signature_version": "s3"}}, "version 4 only"),
    ("s3", "s3fs", {"s3_additional_kwargs": {"ACL": "private"}}, "'ACL' of s3fs's s3_additional_kwargs"),
    ("gcs", "gcsfs", {"token": "anon"}, "'token' of gcsfs being 'anon'"),
    ("gcs", "gcsfs", {"requester_pays": True}, "the option 'requester_pays' of gcsfs"),
    ("gcs", "gcsfs", {"consistency": "md5"}, "the option 'consistency' of gcsfs"),
    ("abfs", "adlfs", {"credential": "own"}, "the option 'credential' of adlfs"),
]


@pytest.mark.parametrize(("scheme", "fallback", "options", "reason"), REFUSED)
def test_option_that_obstore_lacks_needs_the_other_driver(
    scheme: str, fallback: str, options: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_installed = drivers._is_installed
    monkeypatch.setattr(drivers, "_is_installed", lambda module: module != fallback and is_installed(module))
    fsspec.config.conf[scheme] = options
    with pytest.raises(MissingDriverError, match=f"{reason}.*Remove the option.*pip install {fallback}"):
        open_file_system(f"{scheme}://b/x")


def test_fallback_to_the_other_driver_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("s3fs")
    drivers._warn_of_fallback.cache_clear()
    fsspec.config.conf["s3"] = {"version_aware": True, "anon": True}
    with caplog.at_level(logging.WARNING):
        for name in "xy":
            files: Any = open_file_system(f"s3://b{name}/x")[0]
            assert isinstance(files.wrapped, FsspecFileSystem)
    assert [record.getMessage() for record in caplog.records] == [
        "s3:// is accessed through s3fs instead of obstore: obstore has nothing for the option 'version_aware' of s3fs"
    ]


def test_missing_botocore_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(UnsupportedOptionError, match="obstore needs botocore"):
        S3Clients({}, 5)


FORKS = """
import os
from spark_statestore.files import open_file_system
files, path = open_file_system("s3://bucket/x", retries=0)
for number in range(2):
    try:
        files.read(path)
    except OSError as error:
        print(number, error, flush=True)
    if number == 0 and os.fork():
        os.wait()
        break
"""


def test_forked_process_is_refused_instead_of_hanging() -> None:
    environment = REGION | {"PATH": os.environ["PATH"], "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    run = subprocess.run(
        [sys.executable, "-c", FORKS],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first, second = run.stdout.splitlines()
    assert "Connection refused" in first
    assert second.startswith("1 object stores cannot be used in a process forked")


@pytest.mark.parametrize("path", ["a//b", "a/../b", "./b"])
def test_name_that_no_object_can_have_is_refused(path: str) -> None:
    check_url(f"s3://bucket/{path}")
    with pytest.raises(StorageURLError, match=r"cannot contain '//'"):
        open_file_system(f"s3://bucket/{path}")


# Errors


def answer(status: str, code: str = "", message: str = "", name: str = "GenericError") -> Exception:
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>" if code else ""
    text = (
        "Generic S3 error: Error performing PUT https://host/b/k?sig=planted in 1ms - "
        f"Server returned non-2xx status code: {status}: {body}\n\nDebug source:\nplanted"
    )
    return FileNotFoundError(text) if name == "FileNotFoundError" else getattr(obstore.exceptions, name)(text)


def failed(text: str, debug: str = "") -> Exception:
    return obstore.exceptions.GenericError(f"Generic S3 error: {text}\n\nDebug source:\n{debug}")


@pytest.mark.parametrize(
    ("error", "kind", "transient", "text"),
    [
        (answer("412 Precondition Failed", "PreconditionFailed", "no", "AlreadyExistsError"), FileExistsError, False, "b/k"),
        (answer("409 Conflict", "BlobAlreadyExists", "no", "AlreadyExistsError"), FileExistsError, False, "b/k"),
        (answer("409 Conflict", "ConditionalRequestConflict", "x", "AlreadyExistsError"), OSError, True, "ConditionalRequestConflict: x"),
        (answer("409 Conflict", "OperationAborted", "x", "AlreadyExistsError"), OSError, True, "OperationAborted: x"),
        (answer("404 Not Found", "NoSuchKey", "no", "FileNotFoundError"), FileNotFoundError, False, "b/k"),
        (answer("404 Not Found", "", "", "FileNotFoundError"), FileNotFoundError, False, "b/k"),
        (answer("503 Slow Down", "SlowDown", "Reduce"), OSError, True, r"SlowDown: Reduce \(PUT https://host/b/k, status 503\)"),
        (answer("500 Internal"), OSError, True, "status 500"),
        (answer("400 Bad Request", "InvalidRequest", "no"), OSError, False, "InvalidRequest: no"),
        (failed("Server returned error response: <Error><Code>InternalError</Code></Error>"), OSError, True, "InternalError"),
        (failed("HTTP error: error sending request", 'message: "Connection refused",'), ConnectionError, True, "Connection refused"),
        (failed("HTTP error: error sending request", "                IncompleteMessage,"), ConnectionError, True, "IncompleteMessage"),
        (failed("HTTP error: error sending request", "source: TimedOut,"), TimeoutError, True, "no answer in time"),
        (failed("Received redirect without LOCATION"), ConnectionError, True, "redirect"),
        (answer("429 Too Many").__class__("Error performing token request: status code: 429 Too Many"), OSError, True, "429"),
        (obstore.exceptions.PreconditionError("x"), OSError, False, "was replaced"),
        (obstore.exceptions.NotSupportedError("not here"), OSError, False, "not here"),
    ],
)  # fmt: skip
def test_error_is_converted(error: Exception, kind: type[Exception], transient: bool, text: str) -> None:
    found = converted(error, "b/k")
    assert isinstance(found, kind)
    assert is_transient(found) is transient
    with pytest.raises(kind, match=text) as raised:
        raise found
    assert "planted" not in str(raised.value)
    assert access_error(found, "s3://b/k") is None


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (answer("403 Forbidden", "AccessDenied", "no", "PermissionDeniedError"), "access to s3://b/k is denied .*AccessDenied"),
        (answer("403 Forbidden", "AccessDenied", "no"), "access to s3://b/k is denied .*AccessDenied"),
        (answer("403 Forbidden", "InvalidAccessKeyId", "Invalid Access Key, credential", "PermissionDeniedError"), "is denied"),
        (answer("401 Unauthorized", "", "", "UnauthenticatedError"), "access to s3://b/k is denied"),
        (answer("403 Forbidden", "RequestTimeTooSkewed", "no", "PermissionDeniedError"), "the clock of this machine is wrong"),
        (answer("404 Not Found", "NoSuchBucket", "no", "FileNotFoundError"), "the bucket 'b' of s3://b/k does not exist"),
        (failed("Error performing token request: no answer"), "no credentials were found"),
        (failed("Account must be specified"), "no credentials were found"),
        (failed("Invalid Access Key: Invalid symbol 33, offset 9."), "no credentials were found"),
    ],
)  # fmt: skip
def test_error_of_access_names_the_cause(error: Exception, text: str) -> None:
    found = converted(error, "b/k")
    assert not is_transient(found)
    refused = access_error(found, "s3://b/k")
    assert refused is not None
    with pytest.raises(StorageAccessError, match=text):
        raise refused


def test_error_of_a_provider_of_credentials_is_kept() -> None:
    cause = ValueError("no profile")
    error = obstore.exceptions.UnauthenticatedError(
        "External AWS credential provider: ValueError: no profile"
    )
    assert converted(error, "b/k", credentials=cause) is cause
    other = KeyError("of another library")
    assert converted(other, "b/k") is other
