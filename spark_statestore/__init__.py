"""A state store for PySpark's Structured Streaming, checkpointed through Flink's storage model.

>>> import spark_statestore
>>> spark_statestore.PROVIDER_CLASS
'org.apache.spark.sql.statestore.CheckpointStateStoreProvider'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spark_statestore import errors as _errors
from spark_statestore import session as _session
from spark_statestore._version import __version__ as __version__
from spark_statestore.errors import *
from spark_statestore.session import *

if TYPE_CHECKING:
    from spark_statestore.conversion import *
    from spark_statestore.monitoring import *
    from spark_statestore.query.gc import gc as gc
    from spark_statestore.query.repair import repair as repair
    from spark_statestore.query.verify import verify as verify
    from spark_statestore.rows import *
    from spark_statestore.savepoints.api import *
    from spark_statestore.writing import *
else:
    # Imported on first access: these need pyarrow, which a program that only builds a session does not.
    _LAZY = {
        "spark_statestore.conversion": ["Conversion", "ConvertedState", "convert"],
        "spark_statestore.monitoring": ["StateView", "progress"],
        "spark_statestore.query.gc": ["gc"],
        "spark_statestore.query.repair": ["repair"],
        "spark_statestore.query.verify": ["verify"],
        "spark_statestore.rows": ["decode_rows", "diff_state", "encode_rows", "iter_state", "read_state"],
        "spark_statestore.savepoints.api": [
            "Savepoint",
            "begin_output",
            "clone",
            "dispose_savepoint",
            "list_savepoints",
            "load_savepoint",
            "rescale",
            "restore",
            "rollback",
            "savepoint",
            "trigger_savepoint",
        ],
        "spark_statestore.writing": [
            "Absence",
            "Erasure",
            "Migration",
            "WrittenState",
            "aggregation_state",
            "bootstrap",
            "erase",
            "migrate",
            "verify_absent",
            "write_state",
        ],
    }
    _MODULE_OF = {name: module for module, names in _LAZY.items() for name in names}

    # Not seen by type checkers, for which star imports and "import x as x" re-export.
    __all__ = ["__version__"]
    __all__ += list(_MODULE_OF)
    __all__ += _errors.__all__
    __all__ += _session.__all__

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            module = import_module(_MODULE_OF[name])
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith(__name__):
                raise
            raise ModuleNotFoundError(
                f"spark_statestore.{name} is not part of the archive that spark_statestore.configure ships: "
                "Spark's Python workers have the backend and operator state only. Call it on the driver.",
                name=error.name,
            ) from None
        return getattr(module, name)
