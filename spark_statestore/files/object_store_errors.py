"""Conversion of obstore's errors into errors of this package and of the system.

The details of obstore's errors are in their text.
"""

from __future__ import annotations

import errno
import re
from typing import Final

__all__ = ["MissingCredentialsError", "ObjectStoreError", "converted"]

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([^<]+)</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]+)</Message>")
_REQUEST: Final = re.compile(r"Error performing (?!list request|token request)(\S+ \S+)")
# A shared access signature is a part of the query.
_QUERY: Final = re.compile(r"(https?://[^\s?]+)\?\S*")
# The innermost cause in the debug text: a message of the system, or the name of an error.
_CAUSE: Final = re.compile(r'(?:message|error): "([^"]+)"|^\s*"?([A-Za-z][A-Za-z ]+)"?,$', re.MULTILINE)
_BY_CLASS: Final = {"PermissionDeniedError": 403, "UnauthenticatedError": 401}
_BUSY: Final = {429, 500, 502, 503, 504}
# Other codes of a conflict or of a missing object mean something else, such as a request that came in
# between.
_EXISTS: Final = {None, "BlobAlreadyExists", "ConditionNotMet", "PreconditionFailed"}
_ABSENT: Final = {None, "BlobNotFound", "NoSuchKey", "NotFound", "ResourceNotFound"}
_NO_CREDENTIALS: Final = re.compile("token request|credential|Invalid Access Key|Account must be")


class ObjectStoreError(OSError):
    """An error in an object store's answer.

    Attributes
    ----------
    status
        HTTP status; None if the answer began well and ended with an error.
    response
        Status and code in the form of botocore's errors.
    """

    def __init__(self, text: str, status: int | None = None, code: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {"Code": code}}


class MissingCredentialsError(OSError):
    """No credentials for an object store were found, or they could not be fetched."""


def converted(error: Exception, path: str, *, credentials: Exception | None = None) -> Exception:
    """Convert an error of obstore into an `OSError`; return other errors unchanged.

    Parameters
    ----------
    path
        Path of the call.
    credentials
        The last error of the provider of credentials, of which obstore only passes the text on.
    """
    name = type(error).__name__
    if isinstance(error, ValueError) and "parse path" in str(error):
        return OSError(errno.EINVAL, f"an object cannot have this name: {error}", path)
    if not (isinstance(error, FileNotFoundError) or type(error).__module__.startswith("obstore")):
        return error
    text, _, debug = _QUERY.sub(r"\1", str(error)).partition("\n\nDebug source")
    answered, code = _group(_STATUS, text), _group(_CODE, text)
    status = int(answered) if answered else _BY_CLASS.get(name)
    short = _shortened(text, status, code)
    if name == "AlreadyExistsError" and code in _EXISTS:
        return FileExistsError(path)
    if isinstance(error, FileNotFoundError) and code in _ABSENT:
        return FileNotFoundError(path)
    if name == "UnauthenticatedError" and credentials is not None and not answered:
        return credentials
    if name == "PreconditionError":
        return OSError(f"{path} was replaced while it was read")
    cause = next((message or error for message, error in reversed(_CAUSE.findall(debug))), "")
    if _NO_CREDENTIALS.search(text.partition("<")[0]) and status not in _BUSY:
        return MissingCredentialsError(f"{short}: {cause}" if cause and not answered else short)
    if status is not None or code is not None:
        return ObjectStoreError(short, status, code)
    if "TimedOut" in debug:
        return TimeoutError(f"{short}: no answer in time")
    if "HTTP error" in text or "without LOCATION" in text:
        return ConnectionError(f"{short}: {cause}" if cause else short)
    return OSError(short)


def _group(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] if match else None


def _shortened(text: str, status: int | None, code: str | None) -> str:
    if status is None and code is None:
        return " ".join(text.split())
    request, message = _group(_REQUEST, text), _group(_MESSAGE, text)
    answer = f"{code}: {message}" if code and message else code or message or f"status {status}"
    return f"{answer} ({request}, status {status})" if request and status else answer
