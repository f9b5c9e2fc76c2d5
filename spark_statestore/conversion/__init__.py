"""Conversion of a stopped query's checkpoint from one state store to another."""

from spark_statestore.conversion.api import convert
from spark_statestore.conversion.result import Conversion, ConvertedState

__all__ = ["Conversion", "ConvertedState", "convert"]
