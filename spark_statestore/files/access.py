"""Conversion of access errors of remote storage, which differ by driver, into `StorageAccessError`."""

from __future__ import annotations

from typing import Final

from spark_statestore.errors import StorageAccessError
from spark_statestore.files.transient import answer_of, causes_of

__all__ = ["access_error"]

# Class names of botocore, google.auth, azure and `object_store_errors`; the drivers may not be installed.
_NO_CREDENTIALS: Final = {
    "ClientAuthenticationError",
    "CredentialRetrievalError",
    "CredentialUnavailableError",
    "DefaultCredentialsError",
    "MissingCredentialsError",
    "NoAuthTokenError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "RefreshError",
    "SSOError",
    "TokenRetrievalError",
}
_NO_BUCKET: Final = {"ContainerNotFound", "NoSuchBucket"}
_DENIED_STATUS: Final = {401, 403}
_WRONG_CLOCK: Final = "RequestTimeTooSkewed"

# Names of the top level by scheme.
_CONTAINERS: Final = {"s3": "bucket", "gcs": "bucket", "abfs": "container", "az": "container"}

_CONFIGURATION: Final = "fsspec's configuration files (~/.config/fsspec)"
_REMEDIES: Final = {
    "s3": (
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, in the environment, or put the "
        f"credentials into ~/.aws/credentials or {_CONFIGURATION}, or give the machine an instance role"
    ),
    "gcs": (
        "set GOOGLE_APPLICATION_CREDENTIALS in the environment, or run 'gcloud auth application-default "
        f"login', or put the credentials into {_CONFIGURATION}, or give the machine a service account"
    ),
    "abfs": (
        "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_CONNECTION_STRING, "
        f"in the environment, or put the credentials into {_CONFIGURATION}, or give the machine a managed "
        "identity"
    ),
}
_OTHER_REMEDY: Final = f"put the credentials into {_CONFIGURATION}"
_EVERYWHERE: Final = "This is needed on the driver, on every executor, and where the command line runs"

_RIGHTS: Final = {
    "s3": "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket",
    "gcs": "storage.objects.get, create, delete and list",
}


def access_error(error: BaseException, url: str) -> StorageAccessError | None:
    """Build the error for a call that storage refused; None if it failed for another reason.

    Parameters
    ----------
    error
        The driver's error. Drivers wrap the errors of their libraries, so its causes are searched, too.
    url
        URL of the file or directory of the call.
    """
    scheme, _, path = url.partition("://")
    container = f"{_CONTAINERS.get(scheme, 'storage')} {path.partition('/')[0]!r}"
    remedy = _REMEDIES.get("abfs" if scheme == "az" else scheme, _OTHER_REMEDY)
    for cause in causes_of(error):
        if isinstance(cause, StorageAccessError):
            return cause
        text = f"{type(cause).__name__}: {str(cause).rstrip('. ')}"
        status, code = answer_of(cause)
        if any(kind.__name__ in _NO_CREDENTIALS for kind in type(cause).__mro__):
            return StorageAccessError(
                f"no credentials were found for the {container} of {url} ({text}). To provide them, "
                f"{remedy}. "
                f"{_EVERYWHERE}."
            )
        if (code or getattr(cause, "error_code", None)) in _NO_BUCKET:
            return StorageAccessError(
                f"the {container} of {url} does not exist ({text}). Check the URL and the endpoint, or "
                "create it."
            )
        if code == _WRONG_CLOCK:
            return StorageAccessError(
                f"access to {url} is denied because the clock of this machine is wrong ({text}). Set it by a "
                "time service (NTP)."
            )
        if isinstance(cause, PermissionError) or status in _DENIED_STATUS:
            rights = f" (they need {_RIGHTS[scheme]})" if scheme in _RIGHTS else ""
            return StorageAccessError(
                f"access to {url} is denied ({text}). Check which credentials are used, that they are valid, "
                f"and their permissions on the {container}{rights}; to use others, {remedy}. {_EVERYWHERE}."
            )
    return None
