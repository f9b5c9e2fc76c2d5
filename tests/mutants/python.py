"""All mutants of the Python package."""

from __future__ import annotations

from typing import Final

from tests.mutants import (
    derived_state,
    migration,
    moving_state,
    python_processes,
    python_queries,
    python_rows,
    python_storage,
    python_stores,
    rescaling,
)

__all__ = ["MUTANTS"]

MUTANTS: Final = (
    *python_stores.MUTANTS,
    *python_storage.MUTANTS,
    *migration.MUTANTS,
    *rescaling.PYTHON,
    *moving_state.PYTHON,
    *derived_state.MUTANTS,
    *python_processes.MUTANTS,
    *python_queries.MUTANTS,
    *python_rows.MUTANTS,
)
