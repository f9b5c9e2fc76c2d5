"""A state store for PySpark's Structured Streaming, checkpointed through Flink's storage model.

>>> import spark_statestore
>>> spark_statestore.PROVIDER_CLASS
'org.apache.spark.sql.statestore.CheckpointStateStoreProvider'
"""

from spark_statestore._version import __version__
from spark_statestore.errors import (
    AuthenticationError,
    BackendError,
    CheckpointError,
    CheckpointExistsError,
    CheckpointIOError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    ForeignCheckpointError,
    IllegalStateError,
    IncompatibleSparkError,
    MetadataNotFoundError,
    MissingDriverError,
    OptionError,
    ProtocolError,
    SavepointNotFoundError,
    SessionError,
    StateLostError,
    StateMigrationError,
    StateStoreError,
    StateTooLargeError,
    StorageError,
    StorageUnavailableError,
    StorageURLError,
    UnsupportedFormatError,
    VersionMismatchError,
)
from spark_statestore.session import (
    EXTENSIONS_CLASS,
    PLUGIN_CLASS,
    PROVIDER_CLASS,
    attach,
    configure,
    jar_path,
)

__all__ = [
    "EXTENSIONS_CLASS",
    "PLUGIN_CLASS",
    "PROVIDER_CLASS",
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
    "SavepointNotFoundError",
    "SessionError",
    "StateLostError",
    "StateMigrationError",
    "StateStoreError",
    "StateTooLargeError",
    "StorageError",
    "StorageURLError",
    "StorageUnavailableError",
    "UnsupportedFormatError",
    "VersionMismatchError",
    "__version__",
    "attach",
    "configure",
    "jar_path",
]
