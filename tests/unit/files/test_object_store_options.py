"""Tests of options in fsspec's configuration and the environment for obstore, and of obstore's errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from spark_statestore.errors import StorageAccessError, StorageUnavailableError, StorageURLError
from spark_statestore.files import check_url, open_file_system, retry, urls
from spark_statestore.files.access import access_error
from spark_statestore.files.object_store_clients import Client, ObjectStoreClients
from spark_statestore.files.object_store_errors import converted
from spark_statestore.files.object_store_services import AzureClients, GcsClients, S3Clients
from spark_statestore.files.transient import is_transient
from tests.support.paths import ROOT

obstore = pytest.importorskip("obstore")

KEYS = {"AWS_ACCESS_KEY_ID": "env", "AWS_SECRET_ACCESS_KEY": "secret"}
REGION = KEYS | {"AWS_DEFAULT_REGION": "eu-west-1"}
CONNECTION = (
    "DefaultEndpointsProtocol=https;AccountName=acct;AccountKey=a2V5PQ==;EndpointSuffix=core.windows.net"
)
USER = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
NO_OAUTH = {"disable_oauth": True}


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


def set_environment(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def built(clients: ObjectStoreClients, kind: Client = Client.CALLS) -> Any:
    """Return the store of obstore that is built for a bucket."""
    return clients.open("bucket", kind)


# S3


@pytest.mark.parametrize(
    ("environ", "options", "bucket", "expected"),
    [
        (REGION, {}, "bucket", ("https://bucket.s3.eu-west-1.amazonaws.com", True, "eu-west-1")),
        (REGION, {}, "dots.in.it", ("https://s3.eu-west-1.amazonaws.com", False, "eu-west-1")),
        (KEYS, {"region": "cn-north-1"}, "bucket",
         ("https://bucket.s3.cn-north-1.amazonaws.com.cn", True, "cn-north-1")),
        (REGION, {"aws_default_region": "eu-north-1"}, "bucket",
         ("https://bucket.s3.eu-north-1.amazonaws.com", True, "eu-north-1")),
        (REGION | {"AWS_ENDPOINT_URL_S3": "http://minio:9000"}, {}, "bucket",
         ("http://minio:9000", False, "eu-west-1")),
        (REGION | {"AWS_ENDPOINT_URL_S3": "http://aws"}, {"endpoint": "http://minio:9000/below"}, "bucket",
         ("http://minio:9000/below", False, "eu-west-1")),
        (KEYS, {"endpoint_url": "http://minio:9000"}, "bucket", ("http://minio:9000", False, "us-east-1")),
        (KEYS, {"AWS_ENDPOINT_URL_S3": "http://minio:9000"}, "bucket",
         ("http://minio:9000", False, "us-east-1")),
        (REGION, {"endpoint": "http://bucket.minio:9000", "virtual_hosted_style_request": True}, "bucket",
         ("http://bucket.minio:9000", True, "eu-west-1")),
    ],
)  # fmt: skip
def test_s3_endpoint_and_region_are_those_of_botocore_or_the_options(
    environ: dict[str, str],
    options: dict[str, Any],
    bucket: str,
    expected: tuple[str, bool, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_environment(monkeypatch, environ)
    config = S3Clients(options, 5)._arguments_of(bucket)["config"]
    assert config["endpoint"] == config["aws_endpoint_url_s3"]
    assert (config["endpoint"], config["virtual_hosted_style_request"], config["region"]) == expected


def test_s3_addressing_style_is_that_of_a_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[default]\nregion = eu-west-1\ns3 =\n  addressing_style = path\n")
    set_environment(monkeypatch, KEYS | {"AWS_CONFIG_FILE": str(tmp_path / "config")})
    assert S3Clients({}, 5)._arguments_of("bucket")["config"]["virtual_hosted_style_request"] is False


def test_s3_options_are_those_of_obstore(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, KEYS | {"AWS_SESSION_TOKEN": "env"})
    options = {
        "aws_access_key_id": "k",
        "secret_access_key": "s",
        "token": "t",
        "region": "eu-west-1",
        "request_payer": True,
        "server_side_encryption": "aws:kms",
        "sse_kms_key_id": "id",
        "client_options": {"connect_timeout": "2s", "read_timeout": "7s", "allow_invalid_certificates": True},
    }
    clients = S3Clients(options, 5)
    calls, uploads = (built(clients, kind) for kind in (Client.CALLS, Client.UPLOADS))
    assert calls.config["request_payer"] == uploads.config["request_payer"] == "true"
    assert calls.config["server_side_encryption"] == "aws:kms"
    assert (calls.config["disable_bulk_delete"], uploads.config["disable_bulk_delete"]) == ("true", "false")
    assert calls.client_options["connect_timeout"] == "2s"
    assert calls.client_options["read_timeout"] == "7s"
    assert "read_timeout" not in uploads.client_options
    assert (calls.retry_config["max_retries"], uploads.retry_config["max_retries"]) == (0, 5)
    credentials = {"access_key_id": "k", "secret_access_key": "s", "token": "t", "expires_at": None}
    assert calls.credential_provider() == credentials
    # The token of other credentials, in the environment, is not used with them.
    del options["token"]
    assert built(S3Clients(options, 5)).credential_provider() == credentials | {"token": None}


def test_s3_authorities_are_those_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.pem").write_bytes(b"certificate")
    set_environment(monkeypatch, REGION | {"AWS_CA_BUNDLE": str(tmp_path / "ca.pem")})
    arguments = S3Clients({}, 5)._arguments_of("bucket")
    assert arguments["client_options"] == {"root_certificate": b"certificate"}


@pytest.mark.parametrize("value", [True, "true"])
def test_s3_anonymous_access_is_not_signed(value: object) -> None:
    arguments = S3Clients({"skip_signature": value, "endpoint": "http://minio:9000"}, 5)._arguments_of("b")
    assert arguments["config"]["skip_signature"] is value
    assert arguments["credential_provider"] is None


def test_s3_profile_has_temporary_credentials_that_are_fetched_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = {"Version": 1, "AccessKeyId": "k", "SecretAccessKey": "s", "SessionToken": "t"}
    answer["Expiration"] = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    (tmp_path / "answer").write_text(json.dumps(answer))
    (tmp_path / "config").write_text(
        f"[profile p]\nregion = eu-north-1\ncredential_process = cat {tmp_path}/answer\nendpoint_url = "
        "http://profile:1\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for options, profile in (({"profile": "p"}, ""), ({}, "p")):
        if profile:
            monkeypatch.setenv("AWS_PROFILE", profile)
        arguments = S3Clients(options, 5)._arguments_of("b")
        assert arguments["config"]["region"] == "eu-north-1"
        assert arguments["config"]["endpoint"] == "http://profile:1"
        credentials = arguments["credential_provider"]()
        assert (credentials["access_key_id"], credentials["token"]) == ("k", "t")
        # botocore renews them ten minutes before they expire.
        assert timedelta(minutes=5) < credentials["expires_at"] - datetime.now(UTC) <= timedelta(minutes=10)


# Azure and Google Cloud Storage


@pytest.mark.parametrize(
    ("options", "connection", "host", "expected"),
    [
        ({"account_name": "a", "account_key": "a2V5PQ=="}, "", "",
         {"account_name": "a", "account_key": "a2V5PQ=="}),
        ({"sas_key": "?sv=1&sig=2"}, "", "acct.dfs.core.windows.net",
         {"account_name": "acct", "sas_key": "?sv=1&sig=2"}),
        ({}, CONNECTION, "", {"account_name": "acct", "account_key": "a2V5PQ=="}),
        ({}, CONNECTION.replace("windows.net", "chinacloudapi.cn"), "",
         {"account_name": "acct", "account_key": "a2V5PQ==",
          "endpoint": "https://acct.blob.core.chinacloudapi.cn"}),
        ({}, "BlobEndpoint=http://127.0.0.1:1/acct;SharedAccessSignature=sv=1&sig=2;AccountName=acct", "",
         {"account_name": "acct", "sas_key": "sv=1&sig=2", "endpoint": "http://127.0.0.1:1/acct"}),
        ({}, "UseDevelopmentStorage=true", "", {"account_name": "devstoreaccount1", "use_emulator": True}),
        ({"tenant_id": "t", "client_id": "c", "client_secret": "s"}, "", "acct.dfs.core.usgovcloudapi.net",
         {"tenant_id": "t", "client_id": "c", "client_secret": "s", "account_name": "acct",
          "endpoint": "https://acct.blob.core.usgovcloudapi.net"}),
        ({"account_name": "acct", "skip_signature": True}, "", "",
         {"account_name": "acct", "skip_signature": True}),
    ],
)  # fmt: skip
def test_azure_options_are_those_of_obstore_and_of_a_connection_string(
    options: dict[str, Any],
    connection: str,
    host: str,
    expected: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
    clients = AzureClients(options, 5, host)
    assert clients._arguments_of("bucket") == {"config": expected}
    built(clients)


def test_azure_account_is_that_of_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", CONNECTION)
    first, path = open_file_system("abfss://c@one.dfs.core.windows.net/a b/50%25")
    second, _ = open_file_system("abfss://c@two.dfs.core.windows.net/a b/50%25")
    assert path == "c/a b/50%25"
    configs = [files.wrapped._clients._config for files in (first, second)]  # type: ignore[attr-defined]
    assert [config["account_name"] for config in configs] == ["one", "two"]
    assert first.url(path) == "abfs://c/a b/50%25"
    assert open_file_system("az://c/x")[0].url("c/x") == "az://c/x"


def test_gcs_credentials_are_those_of_google_auth(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text(json.dumps(USER))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "gcs:1")
    refreshed: list[Any] = []

    def refresh(self: Any, _: Any) -> None:
        refreshed.append(self)
        self.token, self.expiry = "token-1", datetime(2030, 1, 1)

    monkeypatch.setattr("google.oauth2.credentials.Credentials.refresh", refresh)
    store = built(GcsClients({}, 5))
    assert store.config["base_url"] == "http://gcs:1"
    assert store.credential_provider() == {"token": "token-1", "expires_at": datetime(2030, 1, 1, tzinfo=UTC)}
    assert refreshed[0].refresh_token == "r"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("service_account", dict.fromkeys(("private_key", "private_key_id", "client_email"), "") | NO_OAUTH),
        ("google_application_credentials", USER),
        ("bearer_token", "token"),
        ("skip_signature", "true"),
    ],
)
def test_gcs_credentials_in_the_options_are_up_to_obstore(option: str, value: Any, tmp_path: Path) -> None:
    if isinstance(value, dict):
        (tmp_path / "key.json").write_text(json.dumps(value))
        value = str(tmp_path / "key.json")
    store = built(GcsClients({option: value, "base_url": "http://gcs:1"}, 5))
    assert store.config["base_url"] == "http://gcs:1"
    assert store.credential_provider is None


def test_gcs_without_credentials_names_the_remedies() -> None:
    files, path = open_file_system("gs://bucket/x", retries=0)
    with pytest.raises(
        StorageAccessError, match=r"no credentials were found for the bucket 'bucket'.*GOOGLE_APPL"
    ):
        files.read(path)


def test_credentials_are_fetched_again_after_a_transient_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from google.auth.exceptions import TransportError

    fetched: list[int] = []

    def refresh(_: Any) -> None:
        fetched.append(1)
        raise TransportError("no answer")

    credentials = SimpleNamespace(token=None, expiry=None, refresh=refresh)
    monkeypatch.setattr("google.auth.default", lambda scopes: (credentials, None))
    monkeypatch.setattr(retry, "_FIRST_SECONDS", 0.001)
    files, path = open_file_system("gs://bucket/x", retries=2)
    with pytest.raises(OSError, match=r"no answer.* \(tried 3 times"):
        files.read(path)
    assert len(fetched) == 3


@pytest.mark.parametrize(
    ("url", "options", "reason"),
    [
        ("s3://bucket/x", {"key": "planted"}, "'key' is not valid for store 'S3'"),
        ("s3://bucket/x", {"disable_tagging": "never"}, 'failed to parse "never" as boolean'),
        ("s3://bucket/x", {"client_options": {"read_timeout": "soon"}}, 'failed to parse "soon" as Duration'),
        ("s3://bucket/x", {"client_options": {"read_timeout": 7}}, "'int' object is not an instance of"),
        ("s3://bucket/x", {"client_options": {"proxy": "p"}}, "Invalid key: proxy"),
        ("gcs://bucket/x", {"bearer_token": "t", "token": "planted"}, "'token' is not valid for store 'GCS'"),
        ("abfs://bucket/x", {"account_name": "a", "anon": "planted"}, "'anon' is not valid"),
    ],
)
def test_option_that_obstore_refuses_is_named(url: str, options: dict[str, Any], reason: str) -> None:
    scheme = url.partition(":")[0]
    fsspec.config.conf[scheme] = {"skip_signature": True, "endpoint": "http://minio:9000"} | options
    if scheme != "s3":
        fsspec.config.conf[scheme] = options
    files, path = open_file_system(url, retries=0)
    with pytest.raises(
        StorageUnavailableError, match=f"the bucket 'bucket' cannot be opened: .*{reason}"
    ) as raised:
        files.read(path)
    assert f"the section '{scheme}'" in str(raised.value)
    assert "planted" not in str(raised.value)


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
    output = subprocess.check_output(
        [sys.executable, "-c", FORKS], env=environment, cwd=ROOT, text=True, timeout=60
    )
    first, second = output.splitlines()
    assert "Connection refused" in first
    assert second.startswith("1 object stores cannot be used in a process forked")


@pytest.mark.parametrize("path", ["a//b", "a/../b", "./b"])
def test_name_that_no_object_can_have_is_refused(path: str) -> None:
    check_url(f"s3://bucket/{path}")
    with pytest.raises(StorageURLError, match=r"cannot contain '//'"):
        open_file_system(f"s3://bucket/{path}")


# Errors


def answer(status: int, code: str = "", name: str = "GenericError") -> Exception:
    """Return obstore's error for an answer to a request whose URL is signed."""
    body = f"<Error><Code>{code}</Code><Message>no such credential</Message></Error>" if code else ""
    text = (
        "Generic S3 error: Error performing PUT https://host/b/k?sig=planted in 1ms - "
        f"Server returned non-2xx status code: {status} Reason: {body}\n\nDebug source:\nplanted"
    )
    return FileNotFoundError(text) if name == "FileNotFoundError" else getattr(obstore.exceptions, name)(text)


def failed(text: str, debug: str = "") -> Exception:
    return obstore.exceptions.GenericError(f"Generic S3 error: {text}\n\nDebug source:\n{debug}")


EXISTS, MISSING, DENIED = "AlreadyExistsError", "FileNotFoundError", "PermissionDeniedError"
IN_BODY = failed("Server returned error response: <Error><Code>InternalError</Code></Error>")
UNSENT = "HTTP error: error sending request"
IS_DENIED = "access to s3://b/k is denied"
NO_CREDENTIALS = "no credentials were found"


@pytest.mark.parametrize(
    ("error", "kind", "transient", "text"),
    [
        (answer(412, "PreconditionFailed", EXISTS), FileExistsError, False, "b/k"),
        (answer(409, "BlobAlreadyExists", EXISTS), FileExistsError, False, "b/k"),
        (answer(409, "ConditionalRequestConflict", EXISTS), OSError, True, "ConditionalRequestConflict: no"),
        (answer(409, "OperationAborted", EXISTS), OSError, True, "OperationAborted: no"),
        (answer(404, "NoSuchKey", MISSING), FileNotFoundError, False, "b/k"),
        (answer(404, "", MISSING), FileNotFoundError, False, "b/k"),
        (answer(503, "SlowDown"), OSError, True, r"SlowDown: .* \(PUT https://host/b/k, status 503\)"),
        (answer(500), OSError, True, "status 500"),
        (answer(400, "InvalidRequest"), OSError, False, "InvalidRequest: no"),
        (IN_BODY, OSError, True, "InternalError"),
        (failed(UNSENT, 'message: "Connection refused",'), ConnectionError, True, "Connection refused"),
        (failed(UNSENT, "          IncompleteMessage,"), ConnectionError, True, "IncompleteMessage"),
        (failed(UNSENT, "source: TimedOut,"), TimeoutError, True, "no answer in time"),
        (failed("Received redirect without LOCATION"), ConnectionError, True, "redirect"),
        (failed("Error performing token request: status code: 429 Too Many"), OSError, True, "429"),
        (obstore.exceptions.PreconditionError("x"), OSError, False, "was replaced"),
        (obstore.exceptions.NotSupportedError("not here"), OSError, False, "not here"),
        (answer(403, "AccessDenied", DENIED), StorageAccessError, False, f"{IS_DENIED} .*AccessDenied"),
        (answer(403, "AccessDenied"), StorageAccessError, False, f"{IS_DENIED} .*AccessDenied"),
        (answer(401, "", "UnauthenticatedError"), StorageAccessError, False, IS_DENIED),
        (answer(403, "RequestTimeTooSkewed", DENIED), StorageAccessError, False, "the clock of this machine"),
        (answer(404, "NoSuchBucket", MISSING), StorageAccessError, False, "'b' of s3://b/k does not exist"),
        (failed("Error performing token request: no answer"), StorageAccessError, False, NO_CREDENTIALS),
        (failed("Account must be specified"), StorageAccessError, False, NO_CREDENTIALS),
        (failed("Invalid Access Key: Invalid symbol 33."), StorageAccessError, False, NO_CREDENTIALS),
    ],
)
def test_error_is_converted(error: Exception, kind: type[Exception], transient: bool, text: str) -> None:
    result = converted(error, "b/k")
    assert is_transient(result) is transient
    refused = access_error(result, "s3://b/k")
    assert isinstance(refused, StorageAccessError) == (kind is StorageAccessError)
    with pytest.raises(kind, match=text) as raised:
        raise refused or result
    assert "planted" not in str(raised.value)


def test_error_of_a_provider_of_credentials_is_kept() -> None:
    cause = ValueError("no profile")
    error = obstore.exceptions.UnauthenticatedError(
        "External AWS credential provider: ValueError: no profile"
    )
    assert converted(error, "b/k", credentials=cause) is cause
    foreign_error = KeyError("of another library")
    assert converted(foreign_error, "b/k") is foreign_error
