"""Clients of obstore for the buckets of one service."""

from __future__ import annotations

import enum
import importlib.util
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, ClassVar, Final

from spark_statestore.errors import StorageUnavailableError

__all__ = ["Client", "ObjectStoreClients"]

# The watchdog of a request ends a call before this.
_LONGEST_CALL: Final = timedelta(hours=1)

# The process that has obstore's threads.
_used_by: Final[dict[str, int]] = {}


class Client(enum.Enum):
    """Purpose of a client."""

    CALLS = enum.auto()
    """Short calls, without retries: `RetryingFileSystem` has them."""
    LARGE_CALLS = enum.auto()
    """The same, with a body that takes long to send."""
    UPLOADS = enum.auto()
    """Uploads in parts, whose requests obstore repeats by itself.

    That changes nothing, other than in `create`.
    """


_TIMEOUTS: Final = {
    # The first one includes the time that a body takes to be sent.
    Client.CALLS: {"read_timeout": timedelta(seconds=30), "timeout": _LONGEST_CALL},
    Client.LARGE_CALLS: {"timeout": _LONGEST_CALL},
    Client.UPLOADS: {"timeout": timedelta(minutes=2)},
}


class ObjectStoreClients(ABC):
    """Opens buckets of one service, and keeps one client for each purpose.

    Parameters
    ----------
    options
        Options of the service in fsspec's configuration: those of obstore's configuration of the store, and
        ``client_options`` of its HTTP client.
    retries
        Largest number of retries of a request of an upload.

    Attributes
    ----------
    extra
        Extra of this package that installs what the service needs.
    packages
        What that is: packages by module.
    sections
        Names of the service in fsspec's configuration.
    replaced_driver
        Package of fsspec's driver in whose place obstore is used.
    """

    extra: ClassVar[str]
    packages: ClassVar[dict[str, str]]
    sections: ClassVar[tuple[str, ...]]
    replaced_driver: ClassVar[str]

    def __init__(self, options: Mapping[str, Any], retries: int) -> None:
        self.retries = retries
        self.credentials_error: Exception | None = None
        self._options = {name: value for name, value in options.items() if value is not None}
        self._client_options: dict[str, Any] = self._options.pop("client_options", {})
        self._lock = threading.RLock()
        self._arguments: dict[str, dict[str, Any]] = {}
        self._clients: dict[tuple[str, Client], Any] = {}

    @classmethod
    def require_packages(cls) -> None:
        """Raise an error if a package that the service needs is not installed.

        Raises
        ------
        ImportError
            With what to install.
        """
        missing = [name for module, name in cls.packages.items() if not _is_installed(module)]
        if missing:
            raise ImportError(
                f"{', '.join(missing)} not found (pip install 'spark-statestore[{cls.extra}]'; executors "
                f"need no more of it than {', '.join(cls.packages.values())})"
            )

    def open(self, bucket: str, kind: Client) -> Any:
        """Return the client of a bucket.

        Raises
        ------
        OSError
            If this process was forked from one that has used a client: obstore's threads are in that one, and
            calls hang.
        StorageUnavailableError
            If obstore has no such option, or it has a wrong value.
        """
        if _used_by.setdefault("pid", os.getpid()) != os.getpid():
            raise OSError(
                "object stores cannot be used in a process forked from one that has used them. Start it by "
                "multiprocessing's 'spawn' method."
            )
        with self._lock:
            client = self._clients.get((bucket, kind))
            if client is None:
                client = self._clients[bucket, kind] = self._new(bucket, kind)
            return client

    def find_region(self, bucket: str) -> None:  # noqa: B027 - most have nothing to do
        """Find the region of a bucket that was called in another one.

        Do nothing where there are no regions.
        """

    @abstractmethod
    def _arguments_of(self, bucket: str) -> dict[str, Any]:
        """Return a bucket's arguments of obstore's store.

        They are ``config``, ``client_options`` and ``credential_provider``.
        """

    @abstractmethod
    def _build(self, bucket: str, kind: Client, config: dict[str, Any], **arguments: Any) -> Any:
        """Build a store of obstore."""

    def _new(self, bucket: str, kind: Client) -> Any:
        from obstore.exceptions import GenericError, UnknownConfigurationKeyError

        arguments = self._arguments.get(bucket)
        if arguments is None:
            arguments = self._arguments[bucket] = self._arguments_of(bucket)
        client_options = arguments.get("client_options", {}) | self._client_options
        options = {
            "allow_http": True,
            "connect_timeout": timedelta(seconds=5),
            # Services close idle connections after 20 s or more; obstore would use a closed one once more.
            "pool_idle_timeout": timedelta(seconds=15),
            **{name: value for name, value in client_options.items() if name not in _TIMEOUTS[Client.CALLS]},
            **{name: client_options.get(name, timeout) for name, timeout in _TIMEOUTS[kind].items()},
        }
        retries = {"max_retries": self.retries if kind is Client.UPLOADS else 0}
        arguments = arguments | {"client_options": options, "retry_config": retries}
        try:
            return self._build(bucket, kind, **arguments)
        except (GenericError, UnknownConfigurationKeyError, TypeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            if isinstance(error, GenericError) and "Generic Config error" not in reason:
                # No credentials, for example.
                raise
            raise StorageUnavailableError(
                f"the bucket {bucket!r} cannot be opened: {reason} Check the options in the section "
                f"{' or '.join(map(repr, self.sections))} of fsspec's configuration; they are obstore's."
            ) from None

    def _recorded(self, provide: Callable[[], dict[str, Any]]) -> Any:
        """Return a provider of credentials whose errors are kept: obstore only passes their text on."""

        def call() -> dict[str, Any]:
            try:
                return provide()
            except Exception as error:
                self.credentials_error = error
                raise

        return call


def _is_installed(module: str) -> bool:
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # Its parent is missing.
        return False
