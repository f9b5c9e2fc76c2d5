"""Clients of obstore for Google Cloud Storage and Azure Blob Storage."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC
from typing import Any, Final, cast

from spark_statestore.files.object_store_clients import (
    Client,
    ObjectStoreClients,
    Settings,
    UnsupportedOptionError,
    refuse_others,
)

__all__ = ["AzureClients", "GcsClients"]

_SCOPE: Final = "https://www.googleapis.com/auth/devstorage."

_KINDS: Final = ("service_account", "authorized_user")

_AZURE_CONFIG: Final = {
    "account_name": "account_name",
    "account_key": "account_key",
    "sas_token": "sas_key",
    "client_id": "client_id",
    "client_secret": "client_secret",
    "tenant_id": "tenant_id",
}
_CONNECTION_STRING: Final = {
    "AccountName": "account_name",
    "AccountKey": "account_key",
    "SharedAccessSignature": "sas_key",
    "BlobEndpoint": "endpoint",
}
_EMULATOR: Final = {"use_emulator": True, "account_name": "devstoreaccount1"}


class GcsClients(ObjectStoreClients):
    """Opens buckets of Google Cloud Storage, with credentials as google-auth finds them."""

    def __init__(self, options: Mapping[str, Any], retries: int) -> None:
        super().__init__(options, retries)
        given = self._options
        refuse_others("gcsfs", given, "token", "endpoint_url", "access", "timeout", "consistency")
        if given.get("consistency", "none") != "none":
            raise UnsupportedOptionError("obstore has nothing for the option 'consistency' of gcsfs")
        self._token = given.get("token", "google_default")
        if self._token in ("anon", "browser", "cache"):
            raise UnsupportedOptionError(
                f"obstore has nothing for the option 'token' of gcsfs being {self._token!r}"
            )
        self._read_seconds = float(given.get("timeout", self._read_seconds))
        self._credentials: Any = None
        try:
            import google.auth
            import google.auth.transport.requests  # noqa: F401
        except ImportError as error:
            raise UnsupportedOptionError(
                f"obstore needs google-auth and requests for credentials of Google Cloud Storage ({error})"
            ) from error
        if isinstance(self._token, str) and self._token not in ("google_default", "cloud"):
            with open(self._token, "rb") as file:
                self._token = json.load(file)
        if isinstance(self._token, Mapping) and self._token.get("type") not in _KINDS:
            raise UnsupportedOptionError(
                f"obstore has nothing for the option 'token' of gcsfs with the type {self._token.get('type')!r}"
            )

    def _settings_of(self, bucket: str) -> Settings:
        config: dict[str, Any] = {}
        endpoint = self._options.get("endpoint_url") or os.environ.get("STORAGE_EMULATOR_HOST", "default")
        if endpoint != "default":
            config["base_url"] = endpoint if "://" in endpoint else f"http://{endpoint}"
        self._credentials = self._found()
        return Settings(config, credential_provider=self._provide)

    def _store(self, bucket: str, kind: Client, settings: Settings, **arguments: Any) -> Any:
        from obstore.store import GCSStore

        return GCSStore(
            bucket,
            config=cast(Any, settings.config),
            credential_provider=settings.credential_provider,
            **arguments,
        )

    def _found(self) -> Any:
        import google.auth
        from google.auth import compute_engine
        from google.oauth2 import credentials as user
        from google.oauth2 import service_account

        scopes = [_SCOPE + str(self._options.get("access", "full_control"))]
        if self._token == "google_default":  # noqa: S105 - not a password
            return google.auth.default(scopes=scopes)[0]
        if self._token == "cloud":  # noqa: S105 - not a password
            return compute_engine.Credentials()
        if isinstance(self._token, Mapping) and self._token["type"] == "service_account":
            return service_account.Credentials.from_service_account_info(self._token, scopes=scopes)
        if isinstance(self._token, Mapping):
            return user.Credentials.from_authorized_user_info(self._token, scopes=scopes)
        # Credentials of google-auth.
        return self._token

    def _provide(self) -> dict[str, Any]:
        from google.auth.transport.requests import Request

        try:
            self._credentials.refresh(Request())
        except Exception as error:
            self.credentials_error = error
            raise
        expiry = self._credentials.expiry
        return {"token": self._credentials.token, "expires_at": expiry and expiry.replace(tzinfo=UTC)}


class AzureClients(ObjectStoreClients):
    """Opens containers of Azure Blob Storage.

    obstore finds the credentials: the account's key, a shared access signature, a service principal, workload identity,
    or the machine's managed identity.

    Parameters
    ----------
    options, retries
        As for `ObjectStoreClients`.
    host
        The account's host in a URL such as ``abfss://container@account.dfs.core.windows.net``; else an empty string.
    """

    def __init__(self, options: Mapping[str, Any], retries: int, host: str = "") -> None:
        super().__init__(options, retries)
        given = self._options
        refuse_others(
            "adlfs", given, *_AZURE_CONFIG, "connection_string", "account_host", "anon", "connection_timeout",
            "read_timeout", "location_mode",
        )  # fmt: skip
        self._connect_seconds = float(given.get("connection_timeout", self._connect_seconds))
        self._read_seconds = float(given.get("read_timeout", self._read_seconds))
        config = {name: given[option] for option, name in _AZURE_CONFIG.items() if option in given}
        text = given.get("connection_string") or os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
        if text:
            config = _parsed(text) | config
        if host or (host := given.get("account_host", "")):
            account, _, domain = host.partition(".")
            config["account_name"] = account
            if not domain.endswith(".core.windows.net"):
                config.setdefault("endpoint", f"https://{account}.{domain.replace('dfs.', 'blob.', 1)}")
        if given.get("anon"):
            config["skip_signature"] = True
        if "sas_key" in config:
            config["sas_key"] = config["sas_key"].lstrip("?")
        self._config = config

    def _settings_of(self, bucket: str) -> Settings:
        return Settings(self._config)

    def _store(self, bucket: str, kind: Client, settings: Settings, **arguments: Any) -> Any:
        from obstore.store import AzureStore

        return AzureStore(bucket, config=cast(Any, settings.config), **arguments)


def _parsed(text: str) -> dict[str, Any]:
    """Parse a connection string."""
    fields = dict(part.split("=", 1) for part in text.strip().split(";") if "=" in part)
    if fields.get("UseDevelopmentStorage", "").lower() == "true":
        return dict(_EMULATOR)
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
