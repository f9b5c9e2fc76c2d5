"""Clients of obstore for the buckets of one service."""

from __future__ import annotations

import enum
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

__all__ = ["Client", "ObjectStoreClients", "Settings", "UnsupportedOptionError", "refuse_others"]

# The watchdog of a request ends a call before this.
_LONGEST_CALL: Final = timedelta(hours=1)

# Options of fsspec's drivers that only matter for speed, or for calls that are not made here.
_IRRELEVANT: Final = frozenset(
    {
        "asynchronous", "batch_size", "block_size", "blocksize", "cache_regions", "cache_timeout", "check_connection",
        "assume_container_exists", "default_block_size", "default_cache_type", "default_fill_cache", "default_location",
        "dircache", "fixed_upload_size", "listings_expiry_time", "loop", "max_concurrency", "max_paths", "project",
        "secure_serialize", "skip_instance_cache", "use_listings_cache",
    }
)  # fmt: skip

# The process that has obstore's threads.
_used_by: Final[dict[str, int]] = {}


class UnsupportedOptionError(ValueError):
    """An option in fsspec's configuration that only fsspec's own driver knows, or a missing package."""


class Client(enum.Enum):
    """Purpose of a client."""

    CALLS = enum.auto()
    """Short calls, without retries: `RetryingFileSystem` has them."""
    LARGE_CALLS = enum.auto()
    """The same, with a body that takes long to send."""
    UPLOADS = enum.auto()
    """Uploads in parts, whose requests obstore repeats by itself: that changes nothing, other than in `create`."""


@dataclass
class Settings:
    """Arguments of the constructor of an obstore store.

    Attributes
    ----------
    config
        Configuration of the store.
    options
        Options of the HTTP client, other than time-outs.
    credential_provider
        Returns credentials; None if the configuration has them, or if obstore finds them by itself.
    """

    config: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    credential_provider: Any = None


class ObjectStoreClients(ABC):
    """Opens buckets of one service, and keeps one client for each purpose.

    Parameters
    ----------
    options
        Options of fsspec's driver for the service.
    retries
        Largest number of retries of a request of an upload.

    Raises
    ------
    UnsupportedOptionError
        If an option cannot be passed to obstore, or a package for the credentials is not installed.
    """

    def __init__(self, options: Mapping[str, Any], retries: int) -> None:
        self.retries = retries
        self.credentials_error: Exception | None = None
        self._options = {name: value for name, value in options.items() if value is not None}
        self._connect_seconds = 5.0
        self._read_seconds = 30.0
        self._lock = threading.RLock()
        self._settings: dict[str, Settings] = {}
        self._clients: dict[tuple[str, Client], Any] = {}

    def open(self, bucket: str, kind: Client) -> Any:
        """Return the client of a bucket.

        Raises
        ------
        OSError
            If this process was forked from one that has used a client: obstore's threads are in that one, and calls hang.
        """
        if _used_by.setdefault("pid", os.getpid()) != os.getpid():
            raise OSError(
                "object stores cannot be used in a process forked from one that has used them. Start it by multiprocessing's "
                "'spawn' method."
            )
        with self._lock:
            client = self._clients.get((bucket, kind))
            if client is None:
                client = self._clients[bucket, kind] = self._new(bucket, kind)
            return client

    def find_region(self, bucket: str) -> None:  # noqa: B027 - most have nothing to do
        """Find the region of a bucket that was called in another one; do nothing where there are no regions."""

    @abstractmethod
    def _settings_of(self, bucket: str) -> Settings:
        """Return the settings of a bucket."""

    @abstractmethod
    def _store(self, bucket: str, kind: Client, settings: Settings, **arguments: Any) -> Any:
        """Build a store of obstore."""

    def _new(self, bucket: str, kind: Client) -> Any:
        settings = self._settings.get(bucket)
        if settings is None:
            settings = self._settings[bucket] = self._settings_of(bucket)
        options = settings.options | {
            "allow_http": True,
            "connect_timeout": timedelta(seconds=self._connect_seconds),
        }
        # Services close idle connections after 20 s or more; obstore would use a closed one once more.
        options["pool_idle_timeout"] = timedelta(seconds=15)
        if kind is Client.CALLS:
            # Includes the time that a body takes to be sent.
            options |= {"read_timeout": timedelta(seconds=self._read_seconds), "timeout": _LONGEST_CALL}
        else:
            options["timeout"] = _LONGEST_CALL if kind is Client.LARGE_CALLS else timedelta(minutes=2)
        retries = self.retries if kind is Client.UPLOADS else 0
        return self._store(
            bucket, kind, settings, client_options=options, retry_config={"max_retries": retries}
        )


def refuse_others(service: str, options: Mapping[str, Any], *known: str) -> None:
    """Raise an error for options that are set and neither known nor irrelevant."""
    for name, value in options.items():
        if name not in known and name not in _IRRELEVANT and value not in (None, False, {}, ()):
            raise UnsupportedOptionError(f"obstore has nothing for the option {name!r} of {service}")
