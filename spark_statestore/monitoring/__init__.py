"""A query's progress as a pandas frame, and as a table with plots in a notebook."""

from spark_statestore.monitoring.frame import progress
from spark_statestore.monitoring.view import StateView

__all__ = ["StateView", "progress"]
