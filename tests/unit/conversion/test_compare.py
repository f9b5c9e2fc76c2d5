"""Tests of the comparison of what a conversion has read and written, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_statestore.conversion import api
from spark_statestore.errors import ConversionError

DIGEST = {
    "operator": 0,
    "store": "default",
    "family": "default",
    "partition": 0,
    "keys": 1,
    "values": 2,
    "bytes": 48,
    "sum": "0a",
    "ordered": "0b",
}


@pytest.mark.parametrize(
    "difference",
    [
        {"keys": 2},
        {"values": 1},
        {"bytes": 56},
        {"sum": "0c"},
        {"ordered": "0d"},
        {"family": "b"},
        {"partition": 1},
    ],
    ids=lambda difference: next(iter(difference)),
)
def test_compare_finds_a_difference(monkeypatch: pytest.MonkeyPatch, difference: dict[str, Any]) -> None:
    class Job:
        def __init__(self, *_: object) -> None:
            """Start no job."""

        def digests(self, side: str) -> list[dict[str, Any]]:
            return [DIGEST if side == "source" else DIGEST | difference]

    monkeypatch.setattr(api, "Job", Job)
    monkeypatch.setattr(api, "side", lambda *_, with_ids: {})
    source: Any = SimpleNamespace(batch=1, url="", provider="", ids=None, operators=[])
    nothing: Any = None
    run = api._Run(nothing, source, "", "", {0: 1}, False, None)
    with pytest.raises(ConversionError, match=r"the source has .*, but what was written is"):
        run.compare(api._TargetState(nothing, None, {0: 1}))
