"""Parsing of storage URLs of Spark and users, and opening of their file systems."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping

from spark_statestore.errors import MissingDriverError, StorageError, StorageUnavailableError, StorageURLError
from spark_statestore.files.access import access_error
from spark_statestore.files.base import FileSystem
from spark_statestore.files.hdfs import HDFS_SCHEMES, HdfsFileSystem
from spark_statestore.files.local import LocalFileSystem
from spark_statestore.files.object_store_clients import ObjectStoreClients
from spark_statestore.files.object_store_services import SERVICES, AzureClients
from spark_statestore.files.remote import FsspecFileSystem
from spark_statestore.files.retry import RetryingFileSystem
from spark_statestore.options import DEFAULT_STORAGE_RETRIES, OPTION_PREFIX, PASSWORD

__all__ = ["check_directories", "check_url", "open_file_system", "split_url"]

# Schemes of Hadoop's connectors that fsspec knows under another name.
_HADOOP_SCHEMES = {
    "s3a": "s3",
    "s3n": "s3",
    "abfss": "abfs",
    "wasb": "abfs",
    "wasbs": "abfs",
    "gs": "gcs",
}

# Schemes of fsspec that are no durable, writable storage.
_NOT_STORAGE = {"http", "https", "data", "reference", "git", "github", "jupyter", "simplecache", "filecache"}

# Storage whose driver hides errors: that of FTP reports a directory that it may not read as an empty one, and
# a busy file as a missing one. It also has one connection, which threads would share.
_HIDING_ERRORS = {"ftp"}

_lock = threading.Lock()
_opened: dict[tuple[str, bool, int], FileSystem] = {}


def split_url(url: str) -> tuple[str, str]:
    """Split a URL into fsspec's scheme and the rest; a plain path has the scheme ``file``.

    Raises
    ------
    StorageURLError
        If the URL is empty, has no path, or has a password in it.
    """
    text = url.strip()
    if secret := PASSWORD.match(text):
        # The error must not show it either.
        raise StorageURLError(
            f"the URL {secret[1] + '...@' + text[secret.end() :]!r} contains a password, which logs, "
            "metadata and Spark's UI would show. Remove it: credentials come from the environment, or from "
            "fsspec's configuration files."
        )
    scheme, colon, rest = text.partition(":")
    if not colon or "/" in scheme or len(scheme) == 1:
        scheme, rest = "file", text
    if not rest.strip("/"):
        raise StorageURLError(
            f"{url!r} names no directory: state needs a directory of its own, "
            "such as file:///data/checkpoints or s3://bucket/checkpoints."
        )
    return _HADOOP_SCHEMES.get(scheme.lower(), scheme.lower()), rest


def check_url(url: str) -> None:
    """Check that a file system can be opened for a URL, without opening one.

    Raises
    ------
    StorageURLError
        If the scheme is unknown, or is not one of writable storage that reports errors.
    MissingDriverError
        If the driver for it is not installed.
    """
    scheme, _ = split_url(url)
    if scheme == "file":
        return
    from fsspec.registry import get_filesystem_class, known_implementations, registry

    if scheme in _NOT_STORAGE or (scheme not in known_implementations and scheme not in registry):
        raise StorageURLError(
            f"{url!r} cannot hold state: the scheme {scheme!r} is not one of a writable file system. "
            "Use file:, s3:, gs:, abfss:, hdfs: or another scheme that fsspec can write to."
        )
    if scheme in _HIDING_ERRORS:
        raise StorageURLError(
            f"{url!r} cannot hold state: over {scheme.upper()}, a file or directory that cannot be read for "
            "the moment is reported as missing, and state would be taken for lost or be deleted. Use SFTP, "
            "another network file system, or an object store."
        )
    service = _object_store(scheme)
    try:
        if service is not None:
            service.require_packages()
        else:
            get_filesystem_class(scheme)
    except ImportError as error:
        raise MissingDriverError(
            f"{url!r} needs the driver for {scheme!r}, which is not installed for the interpreter "
            f"{sys.executable}: {error}. The backend on every executor needs it too."
        ) from error


def check_directories(options: Mapping[str, str]) -> None:
    """Check that a file system can be opened for each option that names a directory.

    Parameters
    ----------
    options
        Option values by name, without prefix.

    Raises
    ------
    StorageURLError, MissingDriverError
        As `check_url`, with the option's name.
    """
    for name in "checkpointsDir", "savepointsDir":
        if name in options:
            try:
                check_url(options[name])
            except StorageError as error:
                raise type(error)(f"'{OPTION_PREFIX}{name}' cannot be used: {error}") from error


def open_file_system(
    url: str, *, fsync: bool = False, retries: int = DEFAULT_STORAGE_RETRIES
) -> tuple[FileSystem, str]:
    """Return the file system of a URL and the path in it.

    Spark's own URLs are supported: ``file:/x``, ``s3a://bucket/x``, ``abfss://c@account/x``.

    Parameters
    ----------
    fsync
        Whether files are synced before they count as written, where the file system can.
    retries
        Largest number of retries of a transient failure of remote storage.

    Raises
    ------
    StorageURLError, MissingDriverError
        As `check_url`.
    StorageUnavailableError, StorageAccessError
        If the driver cannot open the file system, or finds no credentials for it.
    """
    scheme, rest = split_url(url)
    if scheme == "file":
        return _local(fsync=fsync), _local_path(url, rest)
    check_url(url)
    # The authority of abfss:// names the account, so it belongs to the file system. With one or three
    # slashes, as in hdfs:///x, there is none, and x is a directory.
    below = rest.lstrip("/")
    slashes = "/" * (len(rest) - len(below))
    key = (f"{scheme}:{slashes}{below.partition('/')[0]}", fsync, retries)
    service = _object_store(scheme)
    if service is None:
        opened, path = _through_fsspec(url, scheme, rest, fsync=fsync)
    else:
        opened, path = _through_obstore(url, scheme, rest, service, retries)
    with _lock:
        files = _opened.get(key)
        if files is None:
            files = _opened[key] = RetryingFileSystem(opened(), retries)
        return files, path


def _object_store(scheme: str) -> type[ObjectStoreClients] | None:
    """Return the service that obstore reaches for a scheme.

    Return None if there is none, or a program has registered a driver.
    """
    service = SERVICES.get(scheme)
    if service is None:
        return None
    from fsspec.registry import known_implementations, registry

    driver = registry.get(scheme)
    name = str(known_implementations[scheme]["class"]) if driver is None else driver.__module__
    return service if name.partition(".")[0] == service.replaced_driver else None


def _through_obstore(
    url: str, scheme: str, rest: str, service: type[ObjectStoreClients], retries: int
) -> tuple[Callable[[], FileSystem], str]:
    """Return a function that opens the file system of a URL through obstore, and the path in it."""
    from fsspec.config import conf

    from spark_statestore.files.object_store import ObjectStoreFileSystem

    path, arguments = rest.strip("/"), {}
    authority, slash, below = path.partition("/")
    if service is AzureClients and "@" in authority:
        container, _, arguments["host"] = authority.partition("@")
        path = container + slash + below
    if not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise StorageURLError(
            f"{url!r} cannot be used: a name of an object cannot contain '//', '/./' or '/../'. Remove it "
            "from the URL."
        )
    options = {option: value for name in service.sections for option, value in conf.get(name, {}).items()}
    return lambda: ObjectStoreFileSystem(service(options, retries, **arguments), scheme), path


def _through_fsspec(url: str, scheme: str, rest: str, *, fsync: bool) -> tuple[Callable[[], FileSystem], str]:
    """Return a function that opens the file system of a URL through fsspec, and the path in it."""
    import fsspec

    # Hadoop writes hdfs:///x as hdfs:/x, which fsspec would take for a local path.
    has_no_host = rest.startswith("/") and not rest.startswith("//")
    mapped = f"{scheme}://{rest}" if has_no_host else f"{scheme}:{rest}"
    try:
        fs, path = fsspec.core.url_to_fs(mapped)
    except Exception as error:
        if (refused := access_error(error, f"{scheme}://{rest.lstrip('/')}")) is not None:
            raise refused from error
        raise StorageUnavailableError(
            f"the file system of {url!r} cannot be opened: {error}. Check the URL, what its driver needs, "
            "and the credentials in the environment or in fsspec's configuration files."
        ) from error
    kind = HdfsFileSystem if scheme in HDFS_SCHEMES else FsspecFileSystem
    return lambda: kind(fs, scheme, fsync=fsync), path


def _local(*, fsync: bool) -> FileSystem:
    with _lock:
        return _opened.setdefault(("file", fsync, 0), LocalFileSystem(fsync=fsync))


def _local_path(url: str, rest: str) -> str:
    path = "/" + rest.lstrip("/") if rest.startswith("/") else rest
    if not path.startswith("/"):
        path = os.path.abspath(path)
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise StorageURLError(
            f"{url!a} cannot be used: this process names files in {error.encoding}, because of its locale, "
            f"which lacks {path[error.start : error.end]!a}. Set LC_ALL=C.UTF-8 or PYTHONUTF8=1 in the "
            "environment of the driver, of every executor, and where the command line runs."
        ) from error
    # Not unquoted: Hadoop does not escape paths in its URLs.
    return path
