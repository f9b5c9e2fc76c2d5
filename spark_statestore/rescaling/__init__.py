"""Redistribution of a query's state to another number of partitions."""

from spark_statestore.rescaling.redistribute import rescaled

__all__ = ["rescaled"]
