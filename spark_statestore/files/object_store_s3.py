"""Clients of obstore for S3, with credentials, endpoint and region as botocore finds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final, cast
from urllib.parse import urlsplit

from spark_statestore.files.object_store_clients import (
    Client,
    ObjectStoreClients,
    Settings,
    UnsupportedOptionError,
    refuse_others,
)

__all__ = ["S3Clients"]

# botocore renews credentials ten minutes before they expire at the latest.
_REFRESH: Final = timedelta(minutes=10)

_ENCRYPTION: Final = {
    "ServerSideEncryption": "server_side_encryption",
    "SSEKMSKeyId": "sse_kms_key_id",
    "BucketKeyEnabled": "sse_bucket_key_enabled",
}
_KEYS: Final = {
    "key": "aws_access_key_id",
    "username": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "password": "aws_secret_access_key",
    "token": "aws_session_token",
}


class S3Clients(ObjectStoreClients):
    """Opens buckets of S3 and of services with its protocol.

    botocore finds the credentials (environment, profile, single sign-on, roles, web identity, machine's role), the endpoint
    and the region, as it does for s3fs; a bucket in another region than configured is found by its first request.
    """

    def __init__(self, options: Mapping[str, Any], retries: int) -> None:
        super().__init__(options, retries)
        given = self._options
        refuse_others(
            "s3fs", given, "anon", "endpoint_url", *_KEYS, "use_ssl", "client_kwargs", "requester_pays", "config_kwargs",
            "s3_additional_kwargs", "profile",
        )  # fmt: skip
        self._anonymous = bool(given.get("anon"))
        client = {_KEYS[name]: given[name] for name in _KEYS if name in given}
        client |= {"endpoint_url": given.get("endpoint_url"), "use_ssl": given.get("use_ssl", True)}
        client |= given.get("client_kwargs") or {}
        refuse_others(
            "s3fs's client_kwargs",
            client,
            *_KEYS.values(),
            "endpoint_url",
            "region_name",
            "use_ssl",
            "verify",
        )
        self._client_arguments = client
        self._config = dict(given.get("config_kwargs") or {})
        refuse_others(
            "s3fs's config_kwargs", self._config, "retries", "connect_timeout", "read_timeout", "s3", "signature_version",
            "max_pool_connections", "tcp_keepalive", "region_name", "use_fips_endpoint", "use_dualstack_endpoint",
            "user_agent", "user_agent_extra",
        )  # fmt: skip
        if self._config.get("signature_version", "s3v4") != "s3v4":
            raise UnsupportedOptionError(
                "obstore signs with version 4 only, unlike config_kwargs.signature_version"
            )
        self._connect_seconds = float(self._config.get("connect_timeout", self._connect_seconds))
        self._read_seconds = float(self._config.get("read_timeout", self._read_seconds))
        configured = self._config.get("retries") or {}
        self.retries = configured.get("total_max_attempts", configured.get("max_attempts", retries) + 1) - 1
        self._encryption = given.get("s3_additional_kwargs") or {}
        refuse_others("s3fs's s3_additional_kwargs", self._encryption, *_ENCRYPTION)
        try:
            import botocore.session
        except ImportError as error:
            raise UnsupportedOptionError(f"obstore needs botocore for credentials of S3 ({error})") from error
        self._new_session: Callable[[], Any] = lambda: botocore.session.Session(profile=given.get("profile"))
        self._session: Any = None
        self._regions: dict[str, str] = {}

    def find_region(self, bucket: str) -> None:
        with self._lock:
            self._regions[bucket] = self._region_of(bucket)
            self._settings.pop(bucket, None)
            self._clients = {key: client for key, client in self._clients.items() if key[0] != bucket}

    def _settings_of(self, bucket: str) -> Settings:
        if self._session is None:
            self._session = self._new_session()
        region = self._regions.get(bucket)
        client = self._client(region)
        if (
            region is None
            and not self._has_region()
            and urlsplit(client.meta.endpoint_url).netloc == "s3.amazonaws.com"
        ):
            region = self._regions[bucket] = self._region_of(bucket)
            client = self._client(region)
        if not self._anonymous:
            # Reports missing credentials.
            self._credentials()
        url = urlsplit(_url_of(client, bucket))
        inside = url.path.removesuffix("/x")
        endpoint = f"{url.scheme}://{url.netloc}"
        in_path = inside.endswith(f"/{bucket}")
        if in_path:
            endpoint += inside.removesuffix(f"/{bucket}")
        config = {
            # A variable of the environment names each of them, too.
            "endpoint": endpoint,
            "aws_endpoint_url_s3": endpoint,
            "region": client.meta.region_name,
            "virtual_hosted_style_request": not in_path,
            "skip_signature": self._anonymous,
        }
        if self._options.get("requester_pays"):
            config["request_payer"] = True
        config |= {_ENCRYPTION[name]: value for name, value in self._encryption.items()}
        return Settings(config, self._tls(), None if self._anonymous else self._provide)

    def _store(self, bucket: str, kind: Client, settings: Settings, **arguments: Any) -> Any:
        from obstore.store import S3Store

        # One object is deleted by DELETE, several by one POST.
        config = settings.config | {"disable_bulk_delete": kind is not Client.UPLOADS}
        return S3Store(
            bucket,
            config=cast(Any, config),
            credential_provider=settings.credential_provider,
            **arguments,
        )

    def _client(self, region: str | None) -> Any:
        from botocore import UNSIGNED
        from botocore.config import Config

        config = dict(self._config) | ({"signature_version": UNSIGNED} if self._anonymous else {})
        arguments = self._client_arguments | ({} if region is None else {"region_name": region})
        return self._session.create_client("s3", config=Config(**config), **arguments)

    def _has_region(self) -> bool:
        given = self._client_arguments.get("region_name") or self._config.get("region_name")
        return bool(given or self._session.get_config_variable("region"))

    def _region_of(self, bucket: str) -> str:
        """Ask the service for the region of a bucket, which it answers also where it denies the call."""
        from botocore.exceptions import ClientError

        client = self._client(None)
        try:
            answer = client.head_bucket(Bucket=bucket)
        except ClientError as error:
            answer = error.response
        headers = answer["ResponseMetadata"].get("HTTPHeaders", {})
        return str(headers.get("x-amz-bucket-region") or client.meta.region_name)

    def _tls(self) -> dict[str, Any]:
        verify = self._client_arguments.get("verify")
        if verify is False:
            return {"allow_invalid_certificates": True}
        authorities = verify if isinstance(verify, str) else self._session.get_config_variable("ca_bundle")
        if not authorities:
            return {}
        with open(authorities, "rb") as file:
            return {"root_certificate": file.read()}

    def _credentials(self) -> Any:
        from botocore.credentials import Credentials
        from botocore.exceptions import NoCredentialsError

        given = [self._client_arguments.get(name) for name in dict.fromkeys(_KEYS.values())]
        credentials = Credentials(*given) if given[0] else self._session.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        return credentials

    def _provide(self) -> dict[str, Any]:
        from botocore.credentials import RefreshableCredentials

        try:
            credentials = self._credentials()
            frozen = credentials.get_frozen_credentials()
        except Exception as error:
            self.credentials_error = error
            raise
        is_temporary = isinstance(credentials, RefreshableCredentials)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _REFRESH if is_temporary else None,
        }


def _url_of(client: Any, bucket: str) -> str:
    """Return the URL of the object ``x`` of a bucket, by botocore's rules for endpoints; make no request."""
    from botocore.awsrequest import AWSResponse

    found: list[str] = []

    def intercept(request: Any, **_: Any) -> Any:
        found.append(request.url)
        return AWSResponse(request.url, 200, {}, SimpleNamespace(stream=lambda: ()))

    client.meta.events.register("before-send.s3.HeadObject", intercept)
    client.head_object(Bucket=bucket, Key="x")
    return found[0]
