"""Another number of state partitions for a query."""

from spark_statestore.savepoint.rescale.redistribute import rescaled

__all__ = ["rescaled"]
