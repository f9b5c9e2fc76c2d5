"""Choice between obstore and fsspec's drivers for object stores."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from spark_statestore.errors import MissingDriverError, StorageUnavailableError, StorageURLError
from spark_statestore.files.base import FileSystem

if TYPE_CHECKING:
    from spark_statestore.files.object_store_clients import ObjectStoreClients

__all__ = ["missing_packages", "open_object_store"]

_logger = logging.getLogger(__name__)

# By scheme: fsspec's driver with its names in fsspec's configuration, and the modules and packages for obstore.
_AZURE: Final = ("adlfs", ("abfs", "az", "abfss"), {"obstore": "obstore"})
_OBJECT_STORES: Final[dict[str, tuple[str, tuple[str, ...], dict[str, str]]]] = {
    "s3": ("s3fs", ("s3", "s3a"), {"obstore": "obstore", "botocore": "botocore"}),
    "gcs": (
        "gcsfs",
        ("gcs", "gs"),
        {"obstore": "obstore", "google.auth": "google-auth", "requests": "requests"},
    ),
    "abfs": _AZURE,
    "az": _AZURE,
}


def missing_packages(scheme: str) -> str | None:
    """Return what to install for a scheme of fsspec's that has no driver; None if it has one."""
    from fsspec.registry import known_implementations

    modules = _OBJECT_STORES[scheme][2] if _is_for_obstore(scheme) else {}
    # First, as they are imported after the first call; a search for another package takes longer than the rest.
    if modules and all(map(_is_installed, modules)):
        return None
    package = str(known_implementations[scheme]["class"]).partition(".")[0]
    return None if _is_installed(package) else " ".join(modules.values()) or package


def open_object_store(
    url: str, scheme: str, rest: str, retries: int
) -> tuple[Callable[[], FileSystem], str] | None:
    """Return a function that opens the file system of a URL through obstore, and the path in it.

    Returns
    -------
    tuple or None
        None if fsspec's driver serves the URL: one that the user registered for the scheme, or the usual one if obstore is
        not installed or lacks what fsspec's configuration asks for, which is logged.

    Raises
    ------
    StorageURLError
        If the path cannot be a name of an object.
    MissingDriverError
        If obstore lacks what the configuration asks for, and fsspec's driver is not installed.
    StorageUnavailableError
        If an option has a wrong value, or names a file that cannot be read.
    """
    if not _is_for_obstore(scheme):
        return None
    fallback, names, modules = _OBJECT_STORES[scheme]
    if not all(map(_is_installed, modules)) and _is_installed(fallback):
        return None
    from fsspec.config import conf

    from spark_statestore.files.object_store import ObjectStoreFileSystem
    from spark_statestore.files.object_store_clients import UnsupportedOptionError

    options = {option: value for name in names for option, value in conf.get(name, {}).items()}
    path, host = rest.strip("/"), ""
    authority, slash, below = path.partition("/")
    if fallback == "adlfs" and "@" in authority:
        container, _, host = authority.partition("@")
        path = container + slash + below
    try:
        clients = _clients_of(fallback, options, retries, host)
    except UnsupportedOptionError as error:
        if not _is_installed(fallback):
            raise MissingDriverError(
                f"{url!r} cannot be used: {error}, and {fallback}, which may, is not installed. Remove the option from fsspec's "
                f"configuration, or: pip install {fallback}. The backend on every executor needs it too."
            ) from error
        _warn_of_fallback(scheme, fallback, str(error))
        return None
    except (OSError, ValueError) as error:
        raise StorageUnavailableError(
            f"the file system of {url!r} cannot be opened: {error}. Check the options in fsspec's configuration."
        ) from error
    if not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise StorageURLError(
            f"{url!r} cannot be used: a name of an object cannot contain '//', '/./' or '/../'. Remove it from the URL."
        )
    return lambda: ObjectStoreFileSystem(clients, scheme), path


def _clients_of(fallback: str, options: Mapping[str, Any], retries: int, host: str) -> ObjectStoreClients:
    if fallback == "s3fs":
        from spark_statestore.files.object_store_s3 import S3Clients

        return S3Clients(options, retries)
    from spark_statestore.files.object_store_cloud import AzureClients, GcsClients

    return GcsClients(options, retries) if fallback == "gcsfs" else AzureClients(options, retries, host)


def _is_for_obstore(scheme: str) -> bool:
    """Return whether a scheme is an object store's, without a driver that the user has registered for it."""
    if scheme not in _OBJECT_STORES:
        return False
    from fsspec.registry import known_implementations, registry

    usual = _OBJECT_STORES[scheme][0]
    registered = registry.get(scheme)
    if registered is not None:
        return str(registered.__module__).partition(".")[0] == usual
    return str(known_implementations[scheme]["class"]).partition(".")[0] == usual


def _is_installed(module: str) -> bool:
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # Its parent is missing.
        return False


@cache
def _warn_of_fallback(scheme: str, fallback: str, reason: str) -> None:
    """Log once why obstore is not used."""
    _logger.warning("%s:// is accessed through %s instead of obstore: %s", scheme, fallback, reason)
