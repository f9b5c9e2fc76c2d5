"""Which failures of storage may well pass."""

from __future__ import annotations

import errno
from typing import Any

__all__ = ["is_transient"]

# Answers of storage, whatever else the error says: they would be the same again.
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
    # Another conditional request for the same name was under way, and nothing is known of its end.
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
# Of drivers, which may not be installed; by the names of their classes and of those these derive from.
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
    """Whether a call that failed like this may well succeed when it is made again.

    So it is with connections that broke or could not be made, with time that ran out, and where the storage said
    that it is busy (429, 503 ``SlowDown``) or had a fault of its own (500, 502, 504). It is not with an answer, such
    as that a file is missing or exists already, that access is denied, or that a disk is full.
    """
    if isinstance(error, _FINAL):
        return False
    # Drivers wrap the errors of the libraries that they use.
    seen = 0
    cause: BaseException | None = error
    while cause is not None and seen < 10:
        if _is_transient_itself(cause):
            return True
        cause, seen = cause.__cause__, seen + 1
    return False


def _is_transient_itself(error: BaseException) -> bool:
    if isinstance(error, _FINAL):
        return False
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError) and error.errno in _TRANSIENT_NUMBERS:
        return True
    status, code = _answer_of(error)
    if status in _TRANSIENT_STATUS or code in _TRANSIENT_CODES:
        return True
    return status is None and any(base.__name__ in _TRANSIENT_CLASSES for base in type(error).__mro__)


def _answer_of(error: BaseException) -> tuple[int | None, str | None]:
    """What the storage answered, as drivers keep it: the HTTP status, and a code that says more."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        code = response.get("Error", {}).get("Code")
        if str(code).isdecimal():
            status, code = int(str(code)), None
        return status, code
    for name in "status", "status_code", "code":
        status = getattr(error, name, None)
        if isinstance(status, int) and not isinstance(status, bool):
            return status, None
        if isinstance(status, str) and status.isdecimal():
            return int(status), None
    return None, None
