"""A state store for PySpark's Structured Streaming, checkpointed through Flink's storage model.

>>> import spark_statestore
>>> spark_statestore.PROVIDER_CLASS
'org.apache.spark.sql.statestore.CheckpointStateStoreProvider'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    RescaleError,
    SavepointError,
    SavepointNotFoundError,
    SessionError,
    StateLostError,
    StateMigrationError,
    StateStoreError,
    StateTooLargeError,
    StorageError,
    StorageTimeoutError,
    StorageUnavailableError,
    StorageURLError,
    UnsupportedFormatError,
    VersionMismatchError,
)
from spark_statestore.session import (
    EXTENSIONS_CLASS,
    JOIN_PROVIDER_CLASS,
    PLUGIN_CLASS,
    PROVIDER_CLASS,
    attach,
    configure,
    jar_path,
)

if TYPE_CHECKING:
    from spark_statestore.checkpoint.query.gc import gc
    from spark_statestore.checkpoint.query.verify import verify
    from spark_statestore.rows import decode_rows, diff_state, iter_state, read_state
    from spark_statestore.savepoint.api import (
        Savepoint,
        clone,
        dispose_savepoint,
        list_savepoints,
        load_savepoint,
        rescale,
        restore,
        rollback,
        savepoint,
        trigger_savepoint,
    )
    from spark_statestore.savepoint.repair import repair

__all__ = [
    "EXTENSIONS_CLASS",
    "JOIN_PROVIDER_CLASS",
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
    "RescaleError",
    "Savepoint",
    "SavepointError",
    "SavepointNotFoundError",
    "SessionError",
    "StateLostError",
    "StateMigrationError",
    "StateStoreError",
    "StateTooLargeError",
    "StorageError",
    "StorageURLError",
    "StorageTimeoutError",
    "StorageUnavailableError",
    "UnsupportedFormatError",
    "VersionMismatchError",
    "__version__",
    "attach",
    "clone",
    "configure",
    "decode_rows",
    "diff_state",
    "dispose_savepoint",
    "gc",
    "iter_state",
    "jar_path",
    "list_savepoints",
    "load_savepoint",
    "read_state",
    "repair",
    "rescale",
    "restore",
    "rollback",
    "savepoint",
    "trigger_savepoint",
    "verify",
]

# What needs pyarrow, which a session does not: loaded when it is asked for.
_LATER = {
    "Savepoint": "spark_statestore.savepoint.api",
    "clone": "spark_statestore.savepoint.api",
    "decode_rows": "spark_statestore.rows",
    "diff_state": "spark_statestore.rows",
    "dispose_savepoint": "spark_statestore.savepoint.api",
    "gc": "spark_statestore.checkpoint.query.gc",
    "iter_state": "spark_statestore.rows",
    "list_savepoints": "spark_statestore.savepoint.api",
    "load_savepoint": "spark_statestore.savepoint.api",
    "read_state": "spark_statestore.rows",
    "repair": "spark_statestore.savepoint.repair",
    "rescale": "spark_statestore.savepoint.api",
    "restore": "spark_statestore.savepoint.api",
    "rollback": "spark_statestore.savepoint.api",
    "trigger_savepoint": "spark_statestore.savepoint.api",
    "verify": "spark_statestore.checkpoint.query.verify",
}


def __getattr__(name: str) -> Any:
    # The package of this name is the function too: it can be called.
    if name == "savepoint":
        return import_module("spark_statestore.savepoint")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
