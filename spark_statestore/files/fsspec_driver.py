"""Drivers of fsspec: what they can do, and calls of them with the errors of this package's file systems."""

from __future__ import annotations

import contextlib
import errno
import inspect
import logging
import re
import socket
from collections.abc import Callable, Iterator
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from spark_statestore.files.access import access_error
from spark_statestore.files.transient import answer_of, causes_of, is_transient

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_logger = logging.getLogger(__name__)

# Object stores: directories are prefixes of names, and making one costs a request.
_OBJECT_STORES: Final = {"s3", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss", "cos", "r2"}

# Errors of drivers' libraries for a missing file, by class name or error code: ResourceNotFoundError,
# NoSuchKey.
_ABSENT: Final = re.compile(r"not_?found|no_?such|not_?exist", re.IGNORECASE)
# The text of libhdfs's error, which has no more than that.
_ABSENT_TEXT: Final = "does not exist"
_ABSENT_STATUS: Final = {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}


@contextlib.contextmanager
def as_os_errors(url: str) -> Iterator[None]:
    """Convert errors of drivers and of their libraries into `OSError`, and into its class by number.

    A `FileNotFoundError` means that the file is missing: one that a driver raises because of another error is
    converted into an error that does not.
    """
    try:
        yield
    except Exception as error:
        if (refused := access_error(error, url)) is not None:
            raise refused from error
        if isinstance(error, FileNotFoundError):
            if (cause := _other_cause(error)) is not None:
                raise OSError(
                    f"the driver calls {url} missing because of another error: {type(cause).__name__}: "
                    f"{cause}"
                ) from cause
            raise
        if isinstance(error, OSError):
            if (specific := _error_by_number(error, url)) is not None:
                raise specific from error
            raise
        if isinstance(error, ValueError | TypeError):
            raise
        raise OSError(f"{type(error).__name__}: {error}") from error


def _other_cause(error: FileNotFoundError) -> BaseException | None:
    """Return the cause of a driver's error for a missing file if it is not that the file is missing."""
    return next((cause for cause in causes_of(error)[1:] if not _is_of_missing_file(cause)), None)


def _is_of_missing_file(error: BaseException) -> bool:
    if isinstance(error, FileNotFoundError | LookupError | StopIteration):
        return True
    if getattr(error, "errno", None) == errno.ENOENT or (
        type(error) is OSError and _ABSENT_TEXT in str(error)
    ):
        return True
    status, code = answer_of(error)
    if status is not None:
        return status in _ABSENT_STATUS
    names = (type(error).__name__, code, getattr(error, "error_code", None))
    return any(_ABSENT.search(str(name)) for name in names)


def _error_by_number(error: OSError, url: str) -> OSError | None:
    """Return the error of the class that Python has for the error's number; None if it is of that class.

    The errors of SMB, for example, have a number alone.
    """
    # Numbers of name resolution have another meaning; ENOENT may be that of a connection's socket.
    if error.errno is None or isinstance(error, socket.gaierror | socket.herror) or is_transient(error):
        return None
    specific = OSError(error.errno, error.strerror or str(error), url)
    return None if isinstance(error, type(specific)) else specific


class CheckedDriver:
    """A driver whose calls raise errors as `as_os_errors` does."""

    def __init__(self, fs: AbstractFileSystem, url_of: Callable[[str], str]) -> None:
        self._fs = fs
        self._url_of = url_of

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._fs, name)
        if not callable(member):
            return member

        def call(path: str, *arguments: Any, **options: Any) -> Any:
            with as_os_errors(self._url_of(path)):
                return member(path, *arguments, **options)

        return call


def disable_cached_listings(fs: AbstractFileSystem) -> None:
    """Turn off a driver's cached listings, in which a file of another process is missing."""
    below: Any = fs
    while below is not None:
        # Most drivers use fsspec's dircache; the cache of another driver is invalidated at each call.
        with contextlib.suppress(AttributeError):
            below.dircache.use_listings_cache = False
            below.dircache.clear()
        below = _driver_below(below)


def finds_files_itself(fs: AbstractFileSystem) -> bool:
    """Return whether a driver has a `find` of its own, rather than fsspec's.

    The one of fsspec omits directories that it cannot list.
    """
    from fsspec import AbstractFileSystem
    from fsspec.asyn import AsyncFileSystem

    if isinstance(fs, AsyncFileSystem):
        return type(fs)._find is not AsyncFileSystem._find
    return type(fs).find is not AbstractFileSystem.find


def renames_files(fs: AbstractFileSystem) -> bool:
    """Return whether a driver has an `mv` of its own, rather than fsspec's.

    The one of fsspec copies a file and then removes it.
    """
    from fsspec import AbstractFileSystem

    below = _driver_below(fs)
    return type(fs).mv is not AbstractFileSystem.mv and (below is None or renames_files(below))


def _driver_below(fs: AbstractFileSystem) -> AbstractFileSystem | None:
    """Return the driver that a driver such as fsspec's DirFileSystem wraps."""
    from fsspec import AbstractFileSystem

    below = getattr(fs, "fs", None)
    return below if isinstance(below, AbstractFileSystem) else None


def creates_exclusively(fs: AbstractFileSystem) -> bool:
    """Return whether a driver's `pipe_file` with the mode ``create`` creates a file exclusively."""
    from fsspec import AbstractFileSystem

    if getattr(fs.pipe_file, "__func__", None) is AbstractFileSystem.pipe_file:
        # It takes a mode, and checks for the file before it writes.
        return False
    parameters = inspect.signature(fs.pipe_file).parameters
    if "mode" in parameters:
        return True
    # A driver that forwards all arguments, such as fsspec's DirFileSystem, does what the driver below it
    # does.
    below = _driver_below(fs)
    forwards = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return forwards and below is not None and creates_exclusively(below)


@cache
def warn_of_inexclusive_create(driver: str, scheme: str) -> None:
    """Log once for a driver that it cannot create files exclusively."""
    _logger.warning(
        "the fsspec driver %s of %s:// cannot create files exclusively: its pipe_file has no such mode. Of "
        "two attempts that commit the same version at the same time the later one wins. Upgrade the driver.",
        driver,
        scheme,
    )


@cache
def warn_of_replace_in_steps(driver: str, scheme: str) -> None:
    """Log once for a driver that it cannot replace a file in one step."""
    _logger.warning(
        "the fsspec driver %s of %s:// cannot replace a file in one step, by renaming another one to it. If "
        "the process is killed meanwhile, the file may be missing or incomplete. Use a storage that renames "
        "files, or an object store.",
        driver,
        scheme,
    )


def protocols_of(fs: AbstractFileSystem) -> tuple[str, ...]:
    """Return the URL schemes of a driver."""
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def is_object_store(fs: AbstractFileSystem) -> bool:
    """Return whether a driver is that of an object store."""
    return not _OBJECT_STORES.isdisjoint(protocols_of(fs))
