"""Assessment of a query's present state store from Spark's event log, and the batch time with this one."""
