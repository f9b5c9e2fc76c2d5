"""The real provider while its backend's storage fails, tears writes, loses answers, or the backend is killed.

After a fault at any call, the store loads as the old or the new version, complete, and the batch can be
repeated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from spark_statestore.testing.faults_plan import FaultKind
from tests.spark.backend_faults import FaultyBackend
from tests.spark.counting import messages
from tests.spark.harness import IMMEDIATE_CLEANUP, Provider, Row
from tests.support.effort import EFFORT
from tests.support.figures import count

Rows = dict[Row, Row]

SMALL: Rows = {("small", 1): (1, "new")}
LARGE: Rows = {(f"large{i}", i): (i, f"{i}" * 40) for i in range(30)}
FIRST: Rows = {(f"k{i}", i): (i, "first") for i in range(30)}


@dataclass
class Life:
    """One store, its acknowledged versions, and its next version."""

    spark: Any
    backend: FaultyBackend
    number: int
    confs: dict[str, str]
    rows: dict[int, Rows] = field(default_factory=lambda: {0: {}})
    ids: dict[int, str | None] = field(default_factory=lambda: {0: None})
    version: int = 0
    attempted: dict[int, list[Rows]] = field(default_factory=dict)
    opened: list[Provider] = field(default_factory=list)

    def open(self) -> Provider:
        location = f"file:{self.backend.files}/{self.number}"
        settings = IMMEDIATE_CLEANUP | {"backend__python": self.backend.python} | self.confs
        self.opened.append(Provider(self.spark, location, **settings))
        return self.opened[-1]

    def commit(self, provider: Provider, put: Rows) -> None:
        version = self.version
        self.attempted.setdefault(version + 1, []).append(self.rows[version] | put)
        store = provider.open(version, self.ids[version])
        try:
            script = store.script()
            for key, value in put.items():
                script.put(key, value)
            script.run()
            store.commit()
        except Py4JJavaError:
            provider.end_stores()
            raise
        self.version = version + 1
        self.ids[self.version] = store.checkpoint_id
        self.rows[self.version] = self.rows[version] | put

    def read(self, version: int, checkpoint_id: str | None) -> Rows:
        store = self.open().open_read(version, checkpoint_id)
        rows = dict(store.rows())
        store.release()
        return rows

    def check(self, since: int) -> None:
        for version in range(since, self.version + 1):
            assert self.read(version, self.ids[version]) == self.rows[version], version

    def check_attempted(self) -> None:
        """Check that the unacknowledged version is complete or missing."""
        version = self.version + 1
        if version not in self.attempted or self.confs["checkpointFormatVersion"] == "2":
            return
        try:
            content = self.read(version, None)
        except Py4JJavaError as error:
            if "does not exist; the store has" not in messages(error.java_exception):
                raise
        else:
            assert content in self.attempted[version]

    def close(self) -> None:
        for provider in self.opened:
            provider.close()
        self.opened.clear()


def three_versions(life: Life) -> Provider:
    provider = life.open()
    for put in (FIRST, LARGE, SMALL):
        life.commit(provider, put)
    return provider


def commits(put: Rows) -> Callable[[Life, Provider], None]:
    return lambda life, provider: life.commit(provider, put | {("at", life.number): (life.number, "")})


def commits_again(life: Life, provider: Provider) -> None:
    """Repeat the batch: in format v1 under the name of the existing version."""
    life.version = 2
    life.commit(life.open(), {("again", 1): (life.number, "")})


def loads(life: Life, provider: Provider) -> None:
    assert life.read(3, life.ids[3]) == life.rows[3]


def maintains(life: Life, provider: Provider) -> None:
    """Write a snapshot that the next commit uses, and then remove old files."""
    provider.snapshot()
    life.commit(provider, {("at", life.number): (life.number, "")})
    provider.cleanup()


OPERATIONS: dict[str, Callable[[Life, Provider], None]] = {
    "a-small-commit": commits({}),
    "a-large-commit": commits(LARGE),
    "a-batch-run-again": commits_again,
    "a-load": loads,
    "maintenance": maintains,
}
SHORT = {("a-large-commit", "1", "false"), ("a-batch-run-again", "2", "false"), ("a-load", "1", "false")}
"""Cases of every run; the others are for soak."""

KINDS: list[FaultKind] = ["fail", "fail_after", "tear", "kill"]


@pytest.fixture(scope="module")
def backend(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> FaultyBackend:
    return FaultyBackend(tmp_path_factory.mktemp("faulty"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "checkpoint_format", "fsync"),
    [
        pytest.param(*case, marks=[] if case in SHORT else [pytest.mark.soak])
        for case in itertools.product(OPERATIONS, ("1", "2"), ("false", "true"))
    ],
)
def test_commit_is_atomic_under_backend_faults(
    spark: Any, backend: FaultyBackend, operation: str, checkpoint_format: str, fsync: str
) -> None:
    confs = {
        "checkpointFormatVersion": checkpoint_format,
        "backend__fileStateThreshold": "1000",
        "backend__compression": "none",
        "minDeltasForSnapshot": "2",
        "spark.sql.streaming.minBatchesToRetain": "2",
        "backend__fsync": fsync,
    }
    number = len(list(backend.files.iterdir()))
    struck = 0
    for kind in KINDS:
        # A killed backend takes a second to restart.
        step = 1 if EFFORT > 1 else 8 if kind == "kill" else 6
        at, fired = 1 + KINDS.index(kind) % step, "something"
        while fired:
            number += 1
            life = Life(spark, backend, number, confs)
            try:
                fired = strike(life, operation, kind, at)
            except BaseException as error:
                error.add_note(f"{kind} at {at}")
                raise
            finally:
                life.close()
            if fired:
                count(f"real provider, {operation}: {kind}")
            struck += bool(fired)
            at += step
    assert struck >= 2


def strike(life: Life, operation: str, kind: FaultKind, at: int) -> str:
    """Run an operation with a fault in one call, check the result, and return the call that had the fault."""
    provider = three_versions(life)
    life.backend.strike(kind, at)
    message = ""
    try:
        OPERATIONS[operation](life, provider)
    except Py4JJavaError as error:
        message = messages(error.java_exception)
    finally:
        fired = life.backend.stop()
    if message:
        assert fired, message
        assert "operator 0, partition 0" in message, message
        life.check_attempted()
    # Spark retries the batch elsewhere.
    life.check(since=2 if operation != "maintenance" else life.version)
    instance = life.open()
    life.commit(instance, LARGE)
    life.commit(instance, {("end", 1): (1, "end")})
    life.check(since=3 if operation != "maintenance" else life.version - 1)
    return fired
