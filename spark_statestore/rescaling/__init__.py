"""Redistribution of a query's state to another number of partitions."""

from spark_statestore.rescaling.redistribute import rescaled, rescaled_count, write_rescaled

__all__ = ["rescaled", "rescaled_count", "write_rescaled"]
