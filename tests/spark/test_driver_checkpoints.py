"""Checkpoints on the driver: the current attempt, the objects of a version, and retention."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from py4j.protocol import Py4JJavaError

from tests.spark.harness import Provider
from tests.support.effort import EFFORT

STORE = "operator 0, partition 0, store default at file:/somewhere"


class Checkpoints:
    """The JVM's `DriverCheckpoints`."""

    def __init__(self, spark: Any) -> None:
        self._jvm = spark._jvm
        self._driver = spark._jvm.org.apache.spark.sql.statestore.driver
        self._checkpoints = self._driver.DriverCheckpoints()

    def put(
        self,
        version: int,
        checkpoint_id: str | None,
        attempt_id: str,
        parent: str | None,
        base: int,
        data: bytes,
    ) -> bool:
        option = self._jvm.scala.Option.apply
        version_of = self._driver.DriverVersion(
            version, option(checkpoint_id), attempt_id, option(parent), base, bytearray(data)
        )
        return bool(self._checkpoints.put(STORE, version_of))

    def chain(self, version: int, checkpoint_id: str | None) -> dict[str, bytes]:
        """Return the objects of a version, by path, as sent to executors."""
        driver_chain = self._checkpoints.chain(STORE, version, self._jvm.scala.Option.apply(checkpoint_id))
        names = self._driver.DriverChain.fromAnswer(driver_chain.toAnswer()).names()
        entries = [names.apply(i) for i in range(names.size())]
        return {name.path(): bytes(self._checkpoints.fetch(STORE, name).get()) for name in entries}

    def range(self) -> tuple[int, int] | None:
        versions = self._checkpoints.chain(STORE, -1, self._jvm.scala.Option.apply(None)).range()
        return (versions.get()._1(), versions.get()._2()) if versions.isDefined() else None

    def discard_before(
        self, newest: int, checkpoint_id: str | None, attempt_id: str, horizon: int, most: int = 0
    ) -> int:
        option = self._jvm.scala.Option.apply
        return int(
            self._checkpoints.discardBefore(STORE, newest, option(checkpoint_id), attempt_id, horizon, most)
        )

    @property
    def bytes(self) -> int:
        return int(self._checkpoints.bytes())

    def clear(self) -> None:
        self._checkpoints.clear()


@pytest.fixture
def checkpoints(spark: Any) -> Checkpoints:
    return Checkpoints(spark)


def test_put_rejects_a_version_without_its_parent(checkpoints: Checkpoints) -> None:
    assert not checkpoints.put(2, None, "bb", "aa", 1, b"changes")
    assert checkpoints.chain(2, None) == {}
    assert checkpoints.range() is None
    assert checkpoints.put(2, None, "bb", None, 2, b"everything")
    # The machine has no version of which another attempt is there.
    assert not checkpoints.put(3, None, "cc", "xx", 2, b"changes of another attempt")
    assert checkpoints.range() == (2, 2)


def test_clear_discards_everything(checkpoints: Checkpoints) -> None:
    checkpoints.put(1, "aa", "aa", None, 1, b"all")
    assert checkpoints.bytes == 3
    checkpoints.clear()
    assert (checkpoints.range(), checkpoints.bytes, checkpoints.chain(1, "aa")) == (None, 0, {})


@dataclass(frozen=True)
class Attempt:
    version: int
    id: str | None
    name: str
    parent: Attempt | None
    base: int
    data: bytes

    @property
    def needed(self) -> list[Attempt]:
        """Return the attempts of its chain, newest first."""
        return [self] if self.parent is None else [self, *self.parent.needed]


class CheckpointsMachine(RuleBasedStateMachine):
    """Commits versions as queries do: with retries, and on top of attempts that are not current."""

    spark: Any = None
    with_ids = False

    def __init__(self) -> None:
        super().__init__()
        self.checkpoints = Checkpoints(self.spark)
        self.begun = 0
        self.attempts: list[Attempt] = []
        self.current: dict[tuple[int, str | None], Attempt] = {}
        self.committed: list[Attempt] = []

    @initialize()
    def first(self) -> None:
        self.commit(0, None, full=True)

    def is_whole(self, attempt_id: Attempt) -> bool:
        names = {a.name for a in self.attempts}
        return all(needed.name in names for needed in attempt_id.needed)

    def commit(self, after: int, parent: Attempt | None, *, full: bool) -> None:
        self.begun += 1
        name = f"{self.begun:016x}"
        version = after + 1
        data = f"{name} at {version}".encode()
        base = version if full or parent is None else parent.base
        attempt = Attempt(
            version, name if self.with_ids else None, name, None if base == version else parent, base, data
        )
        parent_name = attempt.parent.name if attempt.parent else None
        stored = self.checkpoints.put(version, attempt.id, name, parent_name, base, data)
        assert stored == (attempt.parent is None or self.is_whole(attempt.parent))
        if not stored:
            return
        self.attempts.append(attempt)
        self.current[version, attempt.id] = attempt
        self.committed = [*self.committed[:after], attempt]

    @rule(data=st.data(), full=st.sampled_from([False, False, False, True]))
    def next_version(self, data: st.DataObject, full: bool) -> None:
        # An instance builds on its own attempt, even if it is not the current one.
        self.commit_after(len(self.committed), data, full=full)

    @precondition(lambda self: len(self.committed) > 1)
    @rule(data=st.data(), full=st.booleans())
    def again(self, data: st.DataObject, full: bool) -> None:
        self.commit_after(len(self.committed) - 1, data, full=full)

    def commit_after(self, version: int, data: st.DataObject, *, full: bool) -> None:
        parents = [a for a in self.attempts if a.version == version]
        self.commit(version, data.draw(st.sampled_from(parents)) if parents else None, full=full)

    @rule(retained=st.integers(0, 3), most=st.integers(0, 3), owns=st.booleans())
    def discard(self, retained: int, most: int, owns: bool) -> None:
        newest = self.committed[-1]
        horizon = newest.version - retained
        removed = self.checkpoints.discard_before(
            newest.version, newest.id, newest.name if owns else "0" * 15 + "x", horizon, most
        )
        first = min([horizon, *(a.base for a in self.attempts if a.version >= horizon)])
        names = sorted({(a.version, a.id or "") for a in self.attempts if a.version < first})
        # All attempts of a version are discarded together.
        gone = {version for version, _ in names[: most or None]} if owns else set()
        before = len(self.attempts)
        self.attempts = [a for a in self.attempts if a.version not in gone]
        assert removed == before - len(self.attempts)

    @invariant()
    def what_is_kept_is_whole(self) -> None:
        assert self.checkpoints.bytes == sum(len(a.data) for a in self.attempts)
        for attempt_id in self.attempts[-4:]:
            if self.current[attempt_id.version, attempt_id.id] is not attempt_id:
                continue
            objects = self.checkpoints.chain(attempt_id.version, attempt_id.id)
            if not self.is_whole(attempt_id):
                assert objects == {}
                continue
            for needed in attempt_id.needed:
                directory = f"chk-{needed.version}" + (f"_{needed.id}" if needed.id else "")
                owner = self.current[needed.version, needed.id]
                file = "_metadata" if owner is needed else f"_metadata.{needed.name}"
                assert objects[f"{directory}/{file}"] == needed.data


@pytest.mark.slow
@pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])
def test_chain_is_complete_after_random_commits_and_discards(spark: Any, with_ids: bool) -> None:
    machine = type("Machine", (CheckpointsMachine,), {"spark": spark, "with_ids": with_ids})
    run_state_machine_as_test(machine, settings=settings(max_examples=12 * EFFORT, stateful_step_count=25))


# Through a provider


def grow(provider: Provider, versions: range) -> None:
    for version in versions:
        store = provider.open(version)
        store.put(("a", version), (version, "v"))
        assert store.commit() == version + 1


def of_application(spark: Any) -> Any:
    return spark._jvm.org.apache.spark.sql.statestore.driver.DriverCheckpoints.ofApplication()


def test_cleanup_bounds_the_memory_of_the_driver(spark: Any, tmp_path: Path) -> None:
    confs = {
        "backend__storage": "memory",
        "spark.sql.streaming.minBatchesToRetain": "2",
        "minDeltasForSnapshot": "3",
    }
    provider = Provider(spark, f"file:{tmp_path}", **confs)
    before = of_application(spark).bytes()
    sizes = []
    for version in range(30):
        grow(provider, range(version, version + 1))
        provider.open(version + 1).abort()
        provider.cleanup()
        sizes.append(of_application(spark).bytes() - before)
    assert 0 < max(sizes[15:]) < 1.5 * max(sizes[8:15])
    provider.close()
    fresh = Provider(spark, f"file:{tmp_path}", **confs)
    assert len(fresh.open_read(28).rows()) == 28
    with pytest.raises(
        Py4JJavaError, match=r"version 3 of .* is not kept on the driver.* to 30 of this store"
    ):
        fresh.open_read(3)


def test_commit_without_its_parent_on_the_driver_writes_a_full_snapshot(spark: Any, tmp_path: Path) -> None:
    provider = Provider(spark, f"file:{tmp_path}", backend__storage="memory")
    grow(provider, range(2))
    of_application(spark).clear()
    grow(provider, range(2, 3))
    fresh = Provider(spark, f"file:{tmp_path}", backend__storage="memory")
    assert len(fresh.open_read(3).rows()) == 3


def test_another_application_finds_no_version(spark: Any, tmp_path: Path) -> None:
    grow(Provider(spark, f"file:{tmp_path}", backend__storage="memory"), range(1))
    of_application(spark).end()
    fresh = Provider(spark, f"file:{tmp_path}", backend__storage="memory")
    with pytest.raises(Py4JJavaError, match="only on the driver of an application that has ended"):
        fresh.open_read(1)
