"""Redistribution of a query's state to another number of partitions."""

from spark_statestore.rescaling.in_place import rescale_in_place, settle_partitions
from spark_statestore.rescaling.redistribute import rescaled, rescaled_count

__all__ = ["rescale_in_place", "rescaled", "rescaled_count", "settle_partitions"]
