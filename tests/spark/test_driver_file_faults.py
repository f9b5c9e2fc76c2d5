"""Files of a checkpoint while the backend fails, tears writes, loses answers, or is killed.

It is killed alone or with the driver. After a fault at any call on Spark's own files, or on these and on
state that tasks have handed over, the query goes on, or ends with an error and starts again; its result is
exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from spark_statestore.options import OPTION_PREFIX
from spark_statestore.testing.faults_plan import FaultKind
from tests.spark.backend_faults import FaultyBackend
from tests.spark.counting import Program, run_to, wait_until
from tests.support.effort import EFFORT
from tests.support.figures import count

pytestmark = pytest.mark.slow

KINDS: list[FaultKind] = ["fail", "fail_after", "tear", "kill"]
FSYNC = OPTION_PREFIX + "fsync"
FIGURES = ("the driver's files", "commits handed over")

# The calls with commits that are handed over include those on the driver's files.
handing_over = pytest.mark.parametrize(
    "handed_over", [pytest.param(False, marks=pytest.mark.soak), True], ids=FIGURES
)


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[FaultyBackend]:
    """Return a faulty backend, which ends with the test."""
    faulty = FaultyBackend(tmp_path)
    yield faulty
    for process in _backends(faulty):
        process.kill()


def newest(checkpoint: Path) -> int:
    """Return the newest batch of a checkpoint, and check that the files of its logs are whole."""
    batches = [-1]
    for entry in [*checkpoint.glob("offsets/[0-9]*"), *checkpoint.glob("commits/[0-9]*")]:
        version, _, rest = entry.read_text().partition("\n")
        assert version in ("v1", "v2"), entry
        for line in rest.splitlines():
            if line != "-":
                json.loads(line)
        batches.append(int(entry.name))
    return max(batches)


@pytest.mark.parametrize(
    "kind", ["kill", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("fail", "fail_after", "tear"))]
)
@pytest.mark.parametrize("fsync", ["false", pytest.param("true", marks=pytest.mark.soak)])
@handing_over
def test_query_is_exact_after_a_fault_at_each_call(
    spark: Any, backend: FaultyBackend, kind: FaultKind, fsync: str, handed_over: bool
) -> None:
    session = spark.newSession()
    session.conf.set(OPTION_PREFIX + "driverPython", backend.python)
    session.conf.set(FSYNC, fsync)
    if handed_over:
        # The same backend, whose calls on state count as well.
        session.conf.set(OPTION_PREFIX + "python", backend.python)
        session.conf.set(OPTION_PREFIX + "commit", "batch")
    # There are about a hundred calls; a killed backend takes a second to restart.
    step = 1 + handed_over if EFFORT > 1 else 33 if kind == "kill" else 21
    at, number, failed = 1 + KINDS.index(kind), 0, 0
    while True:
        checkpoint = backend.files / str(number)
        backend.strike(kind, at)
        failure = None
        try:
            run_to(session, checkpoint, 3)
        except Exception as error:  # noqa: BLE001 - whatever Spark makes of it
            failure = error
        fired = backend.stop()
        assert fired or failure is None, failure
        failed += failure is not None
        run_to(session, checkpoint, newest(checkpoint) + 1)
        newest(checkpoint)
        if not fired:
            break
        count(f"{FIGURES[handed_over]}: {kind}")
        at, number = at + step, number + 1
    assert number > 2
    # The request is asked for again, from the next backend.
    assert failed == 0 or kind != "kill"


POINTS = [(("kill_driver", "orphan")[number % 2], at) for number, at in enumerate(range(2, 70, 2))]
IN_CI = [pytest.mark.spark, pytest.mark.oldest]
"""Marks of the kill that is not for soak alone."""


@pytest.mark.usefixtures("built")
@handing_over
@pytest.mark.parametrize(
    ("kind", "at"),
    [pytest.param(*point, marks=IN_CI if point == ("orphan", 28) else pytest.mark.soak) for point in POINTS],
)
def test_query_is_exact_after_its_driver_was_killed(
    backend: FaultyBackend, tmp_path: Path, kind: Any, at: int, handed_over: bool
) -> None:
    """It runs in a POSIX locale, with a location beyond ASCII, beside modules with names of imports."""
    environment = {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}
    work = tmp_path / "work"
    work.mkdir()
    for module in "json", "queue", "fsspec", "pyarrow":
        (work / f"{module}.py").write_text("raise ImportError('this is the file of a user')\n")
    checkpoint = backend.files / "pr\xfcfung"
    options = {"python": backend.python, "commit": "batch"} if handed_over else {}
    arguments: dict[str, Any] = {
        "checkpoint": str(checkpoint),
        "directory": str(work),
        "configure": {"driver_python": backend.python} | options,
    }
    backend.strike(kind, at)
    with Program("count", environment, **arguments, batch=5) as program:
        program.process.wait(120)
        # The backend of an orphan ends its call, and then itself.
        assert wait_until(lambda: not _backends(backend), 30)
    assert backend.stop(), "there were fewer calls"
    with Program("count", environment, **arguments, batch=newest(checkpoint) + 2) as program:
        program.next("running")
        program.next("result")
        program.next("stopped")
        program.end()
    count(f"{FIGURES[handed_over]}: {kind}")
    # The programs alone would agree on a location that is encoded wrongly.
    assert newest(checkpoint) >= 1


def _backends(backend: FaultyBackend) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get("BACKEND_FAULTS") == str(backend.files.parent)
    ]
