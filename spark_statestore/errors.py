"""Every error this package raises.

::

    StateStoreError
    ├── OptionError                 (ValueError)         an unknown option, or a value it cannot have
    ├── SessionError                (RuntimeError)       the Spark session cannot use the state store
    │   └── IncompatibleSparkError                       no jar for the Spark that is installed
    ├── BackendError                (RuntimeError)       between the JVM and its backend process
    │   ├── ProtocolError                                a message that cannot be read
    │   ├── AuthenticationError     (PermissionError)    a connection without the token
    │   └── VersionMismatchError                         the two halves are of different versions
    ├── StorageError                                     the place where state is kept
    │   ├── StorageURLError         (ValueError)         a URL that names no usable storage
    │   ├── MissingDriverError      (ImportError)        the fsspec driver of a URL is not installed
    │   ├── StorageUnavailableError (OSError)            the file system of a URL cannot be opened
    │   └── StorageTimeoutError     (TimeoutError)       it did not answer in time
    ├── IllegalStateError           (RuntimeError)       an operation at the wrong moment
    └── CheckpointError                                  one checkpoint, or one stream of it
        ├── CheckpointIOError       (OSError)            it could not be read or written
        ├── CheckpointNotFoundError (FileNotFoundError)  it is not there
        │   ├── ForeignCheckpointError                   another provider's files are there instead
        │   ├── MetadataNotFoundError                    its directory is there, its metadata is not
        │   └── SavepointNotFoundError (ValueError)      no savepoint is stored under a path
        ├── CheckpointExistsError   (FileExistsError)    it is there already, and is never replaced
        ├── StateLostError          (LookupError)        it was kept in a process that is gone
        ├── CorruptCheckpointError  (ValueError)         its bytes are not what was written
        ├── UnsupportedFormatError  (ValueError)         a newer release wrote it
        ├── StateMigrationError     (TypeError)          it does not fit what its state is declared as now
        ├── StateTooLargeError      (ValueError)         more state than the storage may hold
        ├── SavepointError          (RuntimeError)       a savepoint that was asked for was not taken
        └── RescaleError            (ValueError)         it cannot be spread over other partitions

Each message says what happened, why, and what to do next.
"""

from __future__ import annotations

__all__ = [
    "AuthenticationError",
    "BackendError",
    "CheckpointError",
    "CheckpointExistsError",
    "CheckpointIOError",
    "CheckpointNotFoundError",
    "CorruptCheckpointError",
    "ForeignCheckpointError",
    "IllegalStateError",
    "IncompatibleSparkError",
    "MetadataNotFoundError",
    "MissingDriverError",
    "OptionError",
    "ProtocolError",
    "RescaleError",
    "SavepointError",
    "SavepointNotFoundError",
    "SessionError",
    "StateLostError",
    "StateMigrationError",
    "StateStoreError",
    "StateTooLargeError",
    "StorageError",
    "StorageTimeoutError",
    "StorageURLError",
    "StorageUnavailableError",
    "UnsupportedFormatError",
    "VersionMismatchError",
]


class StateStoreError(Exception):
    """Root of all errors of this package."""

    def __str__(self) -> str:
        # OSError, ImportError and KeyError format their arguments in ways of their own.
        return str(self.args[0]) if self.args else type(self).__name__


class OptionError(StateStoreError, ValueError):
    """Raised when an option is unknown or has a value it cannot have."""


class SessionError(StateStoreError, RuntimeError):
    """Raised when a Spark session cannot use the state store as it is configured."""


class IncompatibleSparkError(SessionError):
    """Raised when the installed Spark is of a minor version that no jar was built for."""


class BackendError(StateStoreError, RuntimeError):
    """Raised when a request to the backend process cannot be served at all."""


class ProtocolError(BackendError):
    """Raised when a message between the JVM and the backend cannot be read."""


class AuthenticationError(BackendError, PermissionError):
    """Raised when a connection to the backend does not prove that it knows the token."""


class VersionMismatchError(BackendError):
    """Raised when jar and Python package are of different versions."""


class StorageError(StateStoreError):
    """Root of the errors that concern the place where state is kept."""


class StorageURLError(StorageError, ValueError):
    """Raised when a URL names no storage that this package can use."""


class MissingDriverError(StorageError, ImportError):
    """Raised when the fsspec driver for a URL is not installed."""


class StorageUnavailableError(StorageError, OSError):
    """Raised when the file system of a URL cannot be opened."""


class StorageTimeoutError(StorageError, TimeoutError):
    """Raised when storage did not answer within the time that a call may take."""


class IllegalStateError(StateStoreError, RuntimeError):
    """Raised when an operation comes at a moment at which it has no meaning."""


class CheckpointError(StateStoreError):
    """Root of the errors that concern one checkpoint or one stream of it."""


class CheckpointIOError(CheckpointError, OSError):
    """Raised when a checkpoint or one of its streams could not be read or written."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """Raised when a checkpoint is not where it was looked for."""


class ForeignCheckpointError(CheckpointNotFoundError):
    """Raised when the files at a location were written by another state store provider."""


class MetadataNotFoundError(CheckpointNotFoundError):
    """Raised when a directory that should be a checkpoint holds no metadata."""


class SavepointNotFoundError(CheckpointNotFoundError, ValueError):
    """Raised when no savepoint is stored under a path."""


class CheckpointExistsError(CheckpointError, FileExistsError):
    """Raised when a checkpoint is there already."""


class StateLostError(CheckpointError, LookupError):
    """Raised when state was kept in the memory of a process that is gone."""


class CorruptCheckpointError(CheckpointError, ValueError):
    """Raised when the bytes of a checkpoint are not the bytes that were written."""


class UnsupportedFormatError(CheckpointError, ValueError):
    """Raised when a checkpoint has a format that only a newer release can read."""


class StateMigrationError(CheckpointError, TypeError):
    """Raised when stored state cannot be read as what its state is declared as now."""


class StateTooLargeError(CheckpointError, ValueError):
    """Raised when a state is larger than its storage may hold."""


class SavepointError(CheckpointError, RuntimeError):
    """Raised when a savepoint that was asked for was not taken."""


class RescaleError(CheckpointError, ValueError):
    """Raised when state cannot be spread over another number of partitions."""
