"""Parsing of storage URLs of Spark and users, and opening of their file systems."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping

from spark_statestore.errors import MissingDriverError, StorageError, StorageUnavailableError, StorageURLError
from spark_statestore.files.access import access_error
from spark_statestore.files.base import FileSystem
from spark_statestore.files.drivers import missing_packages, open_object_store
from spark_statestore.files.fsspec_driver import driver_for_calls
from spark_statestore.files.hdfs import HDFS_SCHEMES, HdfsFileSystem
from spark_statestore.files.local import LocalFileSystem
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
    "oss": "oss",
}

# Packages by scheme; fsspec's error does not always name them.
_PACKAGES = {
    "s3": "s3fs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "az": "adlfs",
    "oss": "ossfs",
    "oci": "ocifs",
    "sftp": "paramiko",
    "smb": "smbprotocol",
    "webhdfs": "requests",
    "hdfs": "pyarrow, with Hadoop's libhdfs",
}

# Schemes of fsspec that are no durable, writable storage.
_NOT_STORAGE = {"http", "https", "data", "reference", "git", "github", "jupyter", "simplecache", "filecache"}

# Storage whose driver hides errors: that of FTP reports a directory that it may not read as an empty one, and a busy file as
# a missing one. It also has one connection, which threads would share.
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
            f"the URL {secret[1] + '...@' + text[secret.end() :]!r} contains a password, which logs, metadata and Spark's UI would "
            "show. Remove it: credentials come from the environment, or from fsspec's configuration files."
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
    from fsspec.registry import known_implementations, registry

    if scheme in _NOT_STORAGE or (scheme not in known_implementations and scheme not in registry):
        raise StorageURLError(
            f"{url!r} cannot hold state: the scheme {scheme!r} is not one of a writable file system. "
            "Use file:, s3:, gs:, abfss:, hdfs: or another scheme that fsspec can write to."
        )
    if scheme in _HIDING_ERRORS:
        raise StorageURLError(
            f"{url!r} cannot hold state: over {scheme.upper()}, a file or directory that cannot be read for the moment is reported "
            "as missing, and state would be taken for lost or be deleted. Use SFTP, another network file system, or an object "
            "store."
        )
    if scheme in registry:
        return
    if (missing := missing_packages(scheme)) is not None:
        raise MissingDriverError(
            f"{url!r} needs the driver for {scheme!r}, which is not installed for the "
            f"interpreter {sys.executable}: pip install {missing}. The backend on every executor needs it too."
        )


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
    # The authority of abfss:// names the account, so it belongs to the file system. With one or three slashes, as in
    # hdfs:///x, there is none, and x is a directory.
    below = rest.lstrip("/")
    slashes = "/" * (len(rest) - len(below))
    key = (f"{scheme}:{slashes}{below.partition('/')[0]}", fsync, retries)
    opened, path = open_object_store(url, scheme, rest, retries) or _through_fsspec(
        url, scheme, rest, fsync=fsync
    )
    with _lock:
        files = _opened.get(key)
        if files is None:
            files = _opened[key] = RetryingFileSystem(opened(), retries)
        return files, path


def _through_fsspec(url: str, scheme: str, rest: str, *, fsync: bool) -> tuple[Callable[[], FileSystem], str]:
    """Return a function that opens the file system of a URL through fsspec, and the path in it."""
    import fsspec

    # Hadoop writes hdfs:///x as hdfs:/x, which fsspec would take for a local path.
    has_no_host = rest.startswith("/") and not rest.startswith("//")
    mapped = f"{scheme}://{rest}" if has_no_host else f"{scheme}:{rest}"
    try:
        fs, path = fsspec.core.url_to_fs(mapped)
    except ImportError as error:
        raise MissingDriverError(
            f"{url!r} needs a driver that cannot be imported: {error}. "
            f"Try: pip install {_PACKAGES.get(scheme, scheme)}."
        ) from error
    except Exception as error:
        if (refused := access_error(error, f"{scheme}://{rest.lstrip('/')}")) is not None:
            raise refused from error
        raise StorageUnavailableError(
            f"the file system of {url!r} cannot be opened: {error}. Check the URL, and the credentials "
            "in the environment or in fsspec's configuration files."
        ) from error
    if scheme in HDFS_SCHEMES:
        return lambda: HdfsFileSystem(fs, scheme, fsync=fsync), path
    return lambda: FsspecFileSystem(fs, scheme, fsync=fsync, calls=driver_for_calls(fs)), path


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
            f"{url!a} cannot be used: this process names files in {error.encoding}, because of its locale, which lacks "
            f"{path[error.start : error.end]!a}. Set LC_ALL=C.UTF-8 or PYTHONUTF8=1 in the environment of the driver, of every "
            "executor, and where the command line runs."
        ) from error
    # Not unquoted: Hadoop does not escape paths in its URLs.
    return path
