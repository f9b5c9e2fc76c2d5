"""Classification of storage failures into transient and final ones."""

from __future__ import annotations

import errno
from typing import Any

__all__ = ["answer_of", "causes_of", "is_transient"]

# Final answers of storage, whatever else the error contains: a retry returns the same.
_FINAL = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
_TRANSIENT_NUMBERS = {
    errno.EAGAIN,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.ENETUNREACH,
    errno.EPIPE,
    errno.ETIMEDOUT,
}
_TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}
_TRANSIENT_CODES = {
    # Another conditional request for the same name was in progress; its result is unknown.
    "ConditionalRequestConflict",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "TooManyRequestsException",
}
# Class names of drivers, which may not be installed, including base classes.
_TRANSIENT_CLASSES = {
    "ClientConnectionError",
    "ClientPayloadError",
    "ConnectionClosedError",
    "ConnectionError",
    "HTTPClientError",
    "IncompleteRead",
    "ServiceRequestError",
    "ServiceResponseError",
    "TransportError",
}


def is_transient(error: BaseException) -> bool:
    """Return whether a failed call may succeed when it is retried.

    Transient are broken or refused connections, timeouts, throttling (429, 503 ``SlowDown``) and server
    errors (500, 502, 504). Final are answers such as a missing or existing file, denied access, or a full
    disk.
    """
    if isinstance(error, _FINAL):
        return False
    return any(map(_is_transient_itself, causes_of(error)))


def causes_of(error: BaseException) -> list[BaseException]:
    """Return an error and its causes: drivers wrap the errors of the libraries that they use."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__
    return causes


def _is_transient_itself(error: BaseException) -> bool:
    if isinstance(error, _FINAL):
        return False
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError) and error.errno in _TRANSIENT_NUMBERS:
        return True
    status, code = answer_of(error)
    if status in _TRANSIENT_STATUS or code in _TRANSIENT_CODES:
        return True
    return status is None and any(base.__name__ in _TRANSIENT_CLASSES for base in type(error).__mro__)


def answer_of(error: BaseException) -> tuple[int | None, str | None]:
    """Return the HTTP status and the error code of a driver's error."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        code = response.get("Error", {}).get("Code")
        if str(code).isdecimal():
            status, code = int(str(code)), None
        return status, code
    # The HTTP library requests has the status in its response.
    for answer in (error, response):
        if (status := _status_of(answer)) is not None:
            return status, None
    return None, None


def _status_of(answer: Any) -> int | None:
    for name in "status", "status_code", "code":
        status = getattr(answer, name, None)
        if isinstance(status, int) and not isinstance(status, bool):
            return status
        if isinstance(status, str) and status.isdecimal():
            return int(status)
    return None
