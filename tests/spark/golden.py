"""Recorded outcomes of queries on Spark's own stores, for each minor version of Spark.

A recording is a digest, so that thousands of rows take a line. Where a digest differs, the query runs on
Spark's store as well, and the rows are compared; so does a query without a recording. `make golden` records
all; `make soak` runs both stores again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.effort import EFFORT
from tests.support.paths import ROOT, SPARK_MINOR

RECORDS = os.environ.get("GOLDEN") == "record"

DIRECTORY = ROOT / "tests" / "spark" / "golden" / f"spark-{SPARK_MINOR}"


def canonical(outcome: Any) -> Any:
    """Return an outcome as JSON; the order of a dictionary or a counter does not count."""
    if isinstance(outcome, Mapping):
        return sorted([str(key), canonical(value)] for key, value in outcome.items())
    if isinstance(outcome, list | tuple):
        return [canonical(part) for part in outcome]
    if isinstance(outcome, int | str | None):
        return outcome
    raise TypeError(f"an outcome is made of lists, mappings, numbers and text, not of {type(outcome)}")


def digest(outcome: Any) -> str:
    """Return the SHA-256 of an outcome, shortened to 128 bits."""
    return hashlib.sha256(json.dumps(canonical(outcome)).encode()).hexdigest()[:32]


class Recordings:
    """The recorded outcomes of one test module."""

    def __init__(self, module: str) -> None:
        self._path = DIRECTORY / f"{module}.json"
        self._digests: dict[str, str] = json.loads(self._path.read_text()) if self._path.exists() else {}

    def compare(self, name: str, outcome: Any, on_sparks_store: Callable[[], Any]) -> None:
        """Require that an outcome equals that of Spark's store.

        Parameters
        ----------
        name
            Name of the outcome, unique in the module, whatever the format of this store's checkpoints is.
        ours
            Outcome on this project's store: output, state, whatever the test compares.
        on_sparks_store
            Returns the outcome on Spark's store.
        """
        recorded = self._digests.get(name)
        if recorded == digest(outcome) and not RECORDS and EFFORT == 1:
            return
        expected = on_sparks_store()
        assert outcome == expected
        if RECORDS:
            self._digests[name] = digest(expected)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(self._digests, indent=0, sort_keys=True) + "\n")
        elif recorded is not None:
            assert recorded == digest(expected), (
                f"both stores agree, but {self._path} differs for {name!r}: the query or Spark has changed; "
                "run make golden"
            )
