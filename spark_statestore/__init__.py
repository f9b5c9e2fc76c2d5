"""A state store for PySpark's Structured Streaming, checkpointed through Flink's storage model."""

from spark_statestore._version import __version__

__all__ = ["__version__"]
