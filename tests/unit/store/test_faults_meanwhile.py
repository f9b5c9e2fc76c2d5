"""A second operation runs between any two storage calls of the first: neither damages a version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_statestore.testing.faults_plan import Fault
from tests.support.effort import EFFORT
from tests.support.figures import count
from tests.unit.files.local_disk import local_disk
from tests.unit.store.fault_bench import LARGE, MODELS, Bench, Model, Rows, two_chains
from tests.unit.store.stores import rows_of

Step = Callable[[Bench], object]


def loads(version: int) -> Callable[[Bench], Rows]:
    return lambda bench: rows_of(bench.instance(), bench.names[version])


def commits(bench: Bench) -> None:
    bench.commit(5, {b"e": b"5"} | LARGE, on=4)


def commits_elsewhere(bench: Bench) -> None:
    bench.commit(5, {b"e": b"5"}, on=4, store=bench.instance())


def replaces_the_newest(bench: Bench) -> None:
    """In format v1 another attempt takes its name; in format v2 it is a version beside it."""
    bench.commit(4, {b"other": b"4"} | LARGE, on=3, store=bench.instance())


def cleans(bench: Bench) -> None:
    bench.cleanup(3, 4)


def cleans_elsewhere(bench: Bench) -> None:
    own, bench.store = bench.store, bench.instance()
    bench.store.load(bench.names[4])
    bench.cleanup(3, 4)
    bench.store = own


@dataclass(frozen=True)
class Pair:
    """An operation, and one that runs between two of its calls."""

    first: Step
    second: Step


# `test_interleavings` has the others, with files in memory.
PAIRS = {
    "load-and-commit": Pair(loads(4), commits_elsewhere),
    "load-and-cleanup": Pair(loads(4), cleans),
    "cleanup-and-commit": Pair(cleans, commits),
    "two-cleanups": Pair(cleans, cleans_elsewhere),
    "cleanup-and-another-attempt": Pair(cleans, replaces_the_newest),
    "commit-and-cleanup": Pair(commits, cleans),
}


@pytest.fixture(params=["objects", "local"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Model]:
    if request.param == "objects":
        yield MODELS["objects"]
        return
    with local_disk(tmp_path) as disk:
        yield Model(disk, False, False)


@pytest.mark.parametrize("ids", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("pair", PAIRS)
def test_operation_between_two_calls_of_another_damages_neither(model: Model, pair: str, ids: bool) -> None:
    first, second = PAIRS[pair].first, PAIRS[pair].second
    at, calls = 0, 1
    while at < calls:
        at += 1
        count("store: an operation between two calls of another one")
        bench = Bench(model, ids=ids)
        two_chains(bench)
        before = dict(bench.promised)
        newest = bench.names[4]
        second_results: list[object] = []
        bench.fs.inject(Fault("run", at, function=lambda b=bench, d=second_results: d.append(second(b))))  # type: ignore[misc]
        try:
            first_result = first(bench)
            # The operation in between makes calls as well.
            calls = max(calls, at if not second_results else at + 1)
            bench.fs.inject()
            for rows in (first_result, *second_results):
                if rows is not None:
                    assert rows in (before[newest], bench.promised.get(newest))
            bench.check()
            if EFFORT > 1 or at % 3 == 0:
                bench.store = bench.instance()
                bench.tidy()
        except BaseException as error:
            error.add_note(f"at {at}: " + "; ".join(map(str, bench.fs.calls)))
            raise
        bench.remove()
    assert at > 3
