"""Another number of state partitions for a query."""

from spark_statestore.savepoint.rescale.api import rescale
from spark_statestore.savepoint.rescale.redistribute import rescaled

__all__ = ["rescale", "rescaled"]
