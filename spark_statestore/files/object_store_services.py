"""Clients of obstore for S3, Google Cloud Storage and Azure.

Credentials come from where botocore and google-auth find them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import urlsplit

from spark_statestore.files.object_store_clients import Client, ObjectStoreClients

__all__ = ["SERVICES", "AzureClients", "GcsClients", "S3Clients"]

# botocore renews credentials ten minutes before they expire at the latest.
_REFRESH: Final = timedelta(minutes=10)

# Names that obstore has for one option.
_S3_ALIASES: Final = {
    "default_region": "region",
    "endpoint_url": "endpoint",
    "endpoint_url_s3": "endpoint",
    "token": "session_token",
}
_TRUE: Final = {"1", "on", "true", "y", "yes"}

_GCS_SCOPE: Final = "https://www.googleapis.com/auth/devstorage.full_control"
_GCS_CREDENTIALS: Final = {
    "application_credentials", "bearer_token", "service_account", "service_account_key",
    "service_account_path", "skip_signature",
}  # fmt: skip

_CONNECTION_STRING: Final = {
    "AccountName": "account_name",
    "AccountKey": "account_key",
    "SharedAccessSignature": "sas_key",
    "BlobEndpoint": "endpoint",
}


class S3Clients(ObjectStoreClients):
    """Opens buckets of S3 and of services with its protocol.

    botocore finds the credentials (environment, profile, single sign-on, roles, web identity, machine's
    role), the endpoint and the region; a bucket in another region than configured is found by its first
    request. obstore's own search knows no profiles, and its provider for boto3 does not renew temporary
    credentials in time.
    """

    extra = "s3"
    packages = {"obstore": "obstore", "botocore": "botocore"}  # noqa: RUF012 - never changed
    sections = ("s3", "s3a")
    replaced_driver = "s3fs"

    def __init__(self, options: Mapping[str, Any], retries: int) -> None:
        names = {name: name.lower().removeprefix("aws_") for name in options}
        super().__init__(
            {_S3_ALIASES.get(names[name], names[name]): value for name, value in options.items()}, retries
        )
        keys = ("access_key_id", "secret_access_key", "session_token")
        self._keys = [self._options.pop(name, None) for name in keys]
        self._profile, self._region, self._endpoint = (
            self._options.pop(name, None) for name in ("profile", "region", "endpoint")
        )
        self._is_anonymous = str(self._options.get("skip_signature")).lower() in _TRUE
        self._session: Any = None
        self._regions: dict[str, str] = {}

    def find_region(self, bucket: str) -> None:
        with self._lock:
            self._regions[bucket] = self._region_of(bucket)
            self._arguments.pop(bucket, None)
            self._clients = {key: client for key, client in self._clients.items() if key[0] != bucket}

    def _arguments_of(self, bucket: str) -> dict[str, Any]:
        if self._session is None:
            self._session = self._new_session()
        region = self._regions.get(bucket) or self._region or self._session.get_config_variable("region")
        client = self._client(region)
        if region is None and urlsplit(client.meta.endpoint_url).netloc == "s3.amazonaws.com":
            region = self._regions[bucket] = self._region_of(bucket)
            client = self._client(region)
        if not self._is_anonymous:
            # Reports missing credentials.
            self._credentials()
        endpoint, is_virtual = _endpoint_of(client, bucket)
        config = {
            "endpoint": endpoint,
            # A variable of the environment would have precedence.
            "aws_endpoint_url_s3": endpoint,
            "region": client.meta.region_name,
            "virtual_hosted_style_request": is_virtual,
        }
        return {
            "config": config | self._options,
            "client_options": self._authorities(),
            "credential_provider": None if self._is_anonymous else self._recorded(self._provide),
        }

    def _build(self, bucket: str, kind: Client, config: dict[str, Any], **arguments: Any) -> Any:
        from obstore.store import S3Store

        # One object is deleted by DELETE, several by one POST.
        deletes: Any = {"disable_bulk_delete": kind is not Client.UPLOADS}
        return S3Store(bucket, config=deletes | config, **arguments)

    def _new_session(self) -> Any:
        import botocore.session

        session = botocore.session.Session(profile=self._profile)
        if self._keys[0]:
            session.set_credentials(*self._keys)
        return session

    def _client(self, region: str | None) -> Any:
        from botocore import UNSIGNED
        from botocore.config import Config

        config = Config(signature_version=UNSIGNED) if self._is_anonymous else None
        return self._session.create_client("s3", region, endpoint_url=self._endpoint, config=config)

    def _region_of(self, bucket: str) -> str:
        """Ask the service for the region of a bucket, which it answers also where it denies the call."""
        from botocore.exceptions import ClientError

        client = self._client(self._region)
        try:
            answer = client.head_bucket(Bucket=bucket)
        except ClientError as error:
            answer = error.response
        headers = answer["ResponseMetadata"].get("HTTPHeaders", {})
        return str(headers.get("x-amz-bucket-region") or client.meta.region_name)

    def _authorities(self) -> dict[str, Any]:
        bundle = self._session.get_config_variable("ca_bundle")
        if not bundle:
            return {}
        with open(bundle, "rb") as file:
            return {"root_certificate": file.read()}

    def _credentials(self) -> Any:
        from botocore.exceptions import NoCredentialsError

        credentials = self._session.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        return credentials

    def _provide(self) -> dict[str, Any]:
        from botocore.credentials import RefreshableCredentials

        credentials = self._credentials()
        frozen = credentials.get_frozen_credentials()
        is_temporary = isinstance(credentials, RefreshableCredentials)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _REFRESH if is_temporary else None,
        }


class GcsClients(ObjectStoreClients):
    """Opens buckets of Google Cloud Storage.

    google-auth finds the credentials: obstore's own search knows no federated identities, and its provider
    asks for no scopes. With an option of obstore that names credentials, or for anonymous access, they are up
    to obstore.
    """

    extra = "gcs"
    packages = {"obstore": "obstore", "google.auth": "google-auth", "requests": "requests"}  # noqa: RUF012
    sections = ("gcs", "gs")
    replaced_driver = "gcsfs"

    def _arguments_of(self, bucket: str) -> dict[str, Any]:
        config = dict(self._options)
        emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        if emulator:
            config.setdefault("base_url", emulator if "://" in emulator else f"http://{emulator}")
        if not _GCS_CREDENTIALS.isdisjoint(name.lower().removeprefix("google_") for name in config):
            return {"config": config}
        import google.auth
        from google.auth.transport.requests import Request

        credentials = google.auth.default(scopes=[_GCS_SCOPE])[0]

        def provide() -> dict[str, Any]:
            credentials.refresh(Request())
            expiry = credentials.expiry
            return {"token": credentials.token, "expires_at": expiry and expiry.replace(tzinfo=UTC)}

        return {"config": config, "credential_provider": self._recorded(provide)}

    def _build(self, bucket: str, kind: Client, config: Any, **arguments: Any) -> Any:
        from obstore.store import GCSStore

        return GCSStore(bucket, config=config, **arguments)


class AzureClients(ObjectStoreClients):
    """Opens containers of Azure Blob Storage.

    obstore finds the credentials: the account's key, a shared access signature, a service principal, workload
    identity, or the machine's managed identity.

    Parameters
    ----------
    options, retries
        As for `ObjectStoreClients`.
    host
        The account's host in a URL such as ``abfss://container@account.dfs.core.windows.net``; else an empty
        string.
    """

    extra = "azure"
    packages = {"obstore": "obstore"}  # noqa: RUF012 - never changed
    sections = ("abfs", "az", "abfss")
    replaced_driver = "adlfs"

    def __init__(self, options: Mapping[str, Any], retries: int, host: str = "") -> None:
        super().__init__(options, retries)
        connection = os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
        self._config = (_parsed(connection) if connection else {}) | self._options
        if host:
            account, _, domain = host.partition(".")
            self._config["account_name"] = account
            if not domain.endswith(".core.windows.net"):
                self._config.setdefault("endpoint", f"https://{account}.{domain.replace('dfs.', 'blob.', 1)}")

    def _arguments_of(self, bucket: str) -> dict[str, Any]:
        return {"config": self._config}

    def _build(self, bucket: str, kind: Client, config: Any, **arguments: Any) -> Any:
        from obstore.store import AzureStore

        return AzureStore(bucket, config=config, **arguments)


SERVICES: Final[Mapping[str, type[ObjectStoreClients]]] = {
    "s3": S3Clients,
    "gcs": GcsClients,
    "abfs": AzureClients,
    "az": AzureClients,
}
"""The services by scheme."""


def _endpoint_of(client: Any, bucket: str) -> tuple[str, bool]:
    """Return a bucket's endpoint for obstore by botocore's rules, and whether it contains the bucket.

    Make no request.
    """
    urls: list[str] = []

    def answer(params: Mapping[str, Any], **_: Any) -> Any:
        urls.append(params["url"])
        return SimpleNamespace(status_code=200), {}

    client.meta.events.register("before-call.s3.HeadObject", answer)
    client.head_object(Bucket=bucket, Key="x")
    endpoint = urls[0].removesuffix("/x")
    below = endpoint.removesuffix(f"/{bucket}")
    return below, below == endpoint


def _parsed(text: str) -> dict[str, Any]:
    """Return obstore's options for a connection string of Azure, which it does not know."""
    fields = dict(part.split("=", 1) for part in text.strip().split(";") if "=" in part)
    if fields.get("UseDevelopmentStorage", "").lower() == "true":
        return {"use_emulator": True, "account_name": "devstoreaccount1"}
    config = {name: fields[field] for field, name in _CONNECTION_STRING.items() if fields.get(field)}
    suffix = fields.get("EndpointSuffix", "core.windows.net")
    protocol = fields.get("DefaultEndpointsProtocol", "https")
    if (
        "endpoint" not in config
        and "account_name" in config
        and (suffix, protocol) != ("core.windows.net", "https")
    ):
        config["endpoint"] = f"{protocol}://{config['account_name']}.blob.{suffix}"
    return config
