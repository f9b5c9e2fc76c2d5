"""The errors that this package raises.

::

    StateStoreError
    ├── OptionError                 (ValueError)         an unknown option, or an invalid value
    ├── SessionError                (RuntimeError)       the Spark session cannot use the state store
    │   └── IncompatibleSparkError                       no jar for the installed Spark
    ├── BackendError                (RuntimeError)       between the JVM and its backend process
    │   ├── ProtocolError                                a message that cannot be read
    │   ├── AuthenticationError     (PermissionError)    a connection of another user
    │   └── VersionMismatchError                         jar and package are of different versions
    ├── StorageError                                     a storage
    │   ├── StorageURLError         (ValueError)         a URL that names no usable storage
    │   ├── MissingDriverError      (ImportError)        the driver of a URL is not installed
    │   ├── StorageUnavailableError (OSError)            the file system of a URL cannot be opened
    │   └── StorageTimeoutError     (TimeoutError)       it did not respond in time
    ├── MissingPackageError         (ImportError)        an optional package is not installed
    ├── RowEncodingError            (ValueError)         a row that is not one of its schema
    ├── EventLogError               (ValueError)         no event log of Spark, or none with a streaming query
    ├── IllegalStateError           (RuntimeError)       an operation not allowed in the current state
    └── CheckpointError                                  one checkpoint, or one stream of it
        ├── CheckpointIOError       (OSError)            it could not be read or written
        │   └── StorageAccessError  (PermissionError)    no credentials, access denied, or no such bucket
        ├── CheckpointNotFoundError (FileNotFoundError)  it does not exist
        │   ├── ForeignCheckpointError                   another provider wrote the files
        │   └── SavepointNotFoundError (ValueError)      no savepoint is stored under a path
        ├── CheckpointExistsError   (FileExistsError)    it exists already, and is never replaced
        ├── StateLostError          (LookupError)        its process, which kept it in memory, has ended
        ├── CorruptCheckpointError  (ValueError)         its bytes differ from those written
        ├── UnsupportedFormatError  (ValueError)         a newer release wrote it
        ├── StateMigrationError     (TypeError)          its schema does not match the declared one
        ├── StateTooLargeError      (ValueError)         more state than the storage accepts
        ├── QueryRunningError       (RuntimeError)       its query runs and must be stopped first
        ├── SavepointError          (RuntimeError)       a triggered savepoint failed
        ├── ConversionError         (ValueError)         it cannot be converted to another state store
        └── RescaleError            (ValueError)         it cannot be redistributed

Each message has the subject, what happened, the cause and the remedy.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = [
    "AuthenticationError",
    "BackendError",
    "CheckpointError",
    "CheckpointExistsError",
    "CheckpointIOError",
    "CheckpointNotFoundError",
    "ConversionError",
    "CorruptCheckpointError",
    "EventLogError",
    "ForeignCheckpointError",
    "IllegalStateError",
    "IncompatibleSparkError",
    "MissingDriverError",
    "MissingPackageError",
    "OptionError",
    "ProtocolError",
    "QueryRunningError",
    "RescaleError",
    "RowEncodingError",
    "SavepointError",
    "SavepointNotFoundError",
    "SessionError",
    "StateLostError",
    "StateMigrationError",
    "StateStoreError",
    "StateTooLargeError",
    "StorageAccessError",
    "StorageError",
    "StorageTimeoutError",
    "StorageURLError",
    "StorageUnavailableError",
    "UnsupportedFormatError",
    "VersionMismatchError",
]


# The full stop of a quoted message before that of its sentence; not the dots of a path or an ellipsis.
_TWO_STOPS: Final = re.compile(r"(?<=[^\s./])\.([.;:])(?=\s|$)")


def restore_from_backup(subject: str = "it", otherwise: str | None = "resume from an earlier batch") -> str:
    """Return the remedy for files that are missing or damaged, of an operation that has changed nothing."""
    return f"Restore {subject} from a backup{f', or {otherwise}' if otherwise else ''}; nothing was changed."


class StateStoreError(Exception):
    """Root of all errors of this package.

    Where a quoted message's full stop meets that of its sentence, one is shown.
    """

    def __str__(self) -> str:
        # OSError, ImportError and KeyError format their arguments differently.
        return _TWO_STOPS.sub(r"\1", str(self.args[0])) if self.args else type(self).__name__


class OptionError(StateStoreError, ValueError):
    """Raised when an option is unknown or its value invalid."""


class SessionError(StateStoreError, RuntimeError):
    """Raised when a Spark session cannot use the state store as it is configured."""


class IncompatibleSparkError(SessionError):
    """Raised when there is no jar for the installed Spark's minor version."""


class BackendError(StateStoreError, RuntimeError):
    """Raised when a request to the backend process cannot be served at all."""


class ProtocolError(BackendError):
    """Raised when a message between the JVM and the backend cannot be read."""


class AuthenticationError(BackendError, PermissionError):
    """Raised when a process of another user connects to the backend, or could."""


class VersionMismatchError(BackendError):
    """Raised when jar and Python package are of different versions."""


class StorageError(StateStoreError):
    """Root of the errors of a storage."""


class StorageURLError(StorageError, ValueError):
    """Raised when a URL names no storage that this package can use."""


class MissingDriverError(StorageError, ImportError):
    """Raised when the driver for a URL is not installed."""


class StorageUnavailableError(StorageError, OSError):
    """Raised when the file system of a URL cannot be opened."""


class StorageTimeoutError(StorageError, TimeoutError):
    """Raised when a storage call exceeds its timeout."""


class MissingPackageError(StateStoreError, ImportError):
    """Raised when a function needs an optional package that is not installed."""


class RowEncodingError(StateStoreError, ValueError):
    """Raised when a column or a value of a row does not have the type that the row's schema has."""


class EventLogError(StateStoreError, ValueError):
    """Raised when a file is no event log of Spark, cannot be read, or has no streaming query."""


class IllegalStateError(StateStoreError, RuntimeError):
    """Raised when an operation is not allowed in the current state."""


class CheckpointError(StateStoreError):
    """Root of the errors of one checkpoint or one of its streams."""


class CheckpointIOError(CheckpointError, OSError):
    """Raised when a checkpoint or one of its streams could not be read or written."""


class StorageAccessError(CheckpointIOError, PermissionError):
    """Raised when storage refuses access, no credentials for it are found, or it has no such bucket."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """Raised when a checkpoint does not exist."""


class ForeignCheckpointError(CheckpointNotFoundError):
    """Raised when the files at a location were written by another state store provider."""


class SavepointNotFoundError(CheckpointNotFoundError, ValueError):
    """Raised when no savepoint is stored under a path."""


class CheckpointExistsError(CheckpointError, FileExistsError):
    """Raised when a checkpoint exists already."""


class StateLostError(CheckpointError, LookupError):
    """Raised when state was kept in the memory of a process that has ended."""


class CorruptCheckpointError(CheckpointError, ValueError):
    """Raised when the bytes of a checkpoint differ from those written."""


class UnsupportedFormatError(CheckpointError, ValueError):
    """Raised when a checkpoint has a format that only a newer release can read."""


class StateMigrationError(CheckpointError, TypeError):
    """Raised when the schema of stored state does not match the declared one."""


class StateTooLargeError(CheckpointError, ValueError):
    """Raised when a state exceeds the maximum size of its storage."""


class QueryRunningError(CheckpointError, RuntimeError):
    """Raised when an operation needs a stopped query and the query seems to run."""


class SavepointError(CheckpointError, RuntimeError):
    """Raised when a triggered savepoint failed."""


class ConversionError(CheckpointError, ValueError):
    """Raised when a checkpoint cannot be converted to another state store."""


class RescaleError(CheckpointError, ValueError):
    """Raised when state cannot be redistributed to another number of partitions."""
