"""What the driver keeps for executors: which attempt counts, what a version needs, what may be discarded."""

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

from tests.effort import EFFORT
from tests.spark.harness import Provider

STORE = "operator 0, partition 0, store default at file:/somewhere"


class Held:
    """The driver's `HeldCheckpoints`."""

    def __init__(self, spark: Any) -> None:
        self._jvm = spark._jvm
        self._memory = spark._jvm.org.apache.spark.sql.statestore.memory
        self._held = self._memory.HeldCheckpoints()

    def put(
        self, version: int, of: str | None, attempt: str, parent: str | None, base: int, data: bytes
    ) -> bool:
        option = self._jvm.scala.Option.apply
        held = self._memory.HeldVersion(version, option(of), attempt, option(parent), base, bytearray(data))
        return bool(self._held.put(STORE, held))

    def chain(self, version: int, of: str | None) -> dict[str, bytes]:
        """The objects of a version, by path, as an executor gets them."""
        found = self._held.chain(STORE, version, self._jvm.scala.Option.apply(of))
        names = self._memory.HeldChain.fromAnswer(found.toAnswer()).names()
        taken = [names.apply(i) for i in range(names.size())]
        return {name.path(): bytes(self._held.fetch(STORE, name).get()) for name in taken}

    def range(self) -> tuple[int, int] | None:
        found = self._held.chain(STORE, -1, self._jvm.scala.Option.apply(None)).range()
        return (found.get()._1(), found.get()._2()) if found.isDefined() else None

    def discard_before(self, newest: int, of: str | None, attempt: str, horizon: int, most: int = 0) -> int:
        option = self._jvm.scala.Option.apply
        return int(self._held.discardBefore(STORE, newest, option(of), attempt, horizon, most))

    @property
    def bytes(self) -> int:
        return int(self._held.bytes())

    def clear(self) -> None:
        self._held.clear()


@pytest.fixture
def held(spark: Any) -> Held:
    return Held(spark)


def test_the_last_attempt_counts_and_the_others_stay_beside_it(held: Held) -> None:
    assert held.put(1, None, "aa", None, 1, b"first")
    assert held.put(1, None, "bb", None, 1, b"second")
    # Again, since its answer was lost: nothing changes.
    assert held.put(1, None, "aa", None, 1, b"first")
    assert held.chain(1, None) == {"chk-1/_metadata": b"second"}
    assert held.put(2, None, "cc", "aa", 1, b"on top of the first")
    assert held.chain(2, None) == {
        "chk-1/_metadata": b"second",
        "chk-1/_metadata.aa": b"first",
        "chk-2/_metadata": b"on top of the first",
    }


def test_a_version_without_its_parent_is_not_taken(held: Held) -> None:
    assert not held.put(2, None, "bb", "aa", 1, b"changes")
    assert held.chain(2, None) == {}
    assert held.range() is None
    assert held.put(2, None, "bb", None, 2, b"everything")
    assert not held.put(3, None, "cc", "xx", 2, b"changes of another attempt")
    assert held.range() == (2, 2)


def test_who_lost_the_store_discards_nothing(held: Held) -> None:
    for version in range(1, 5):
        held.put(version, None, f"a{version}", None, version, b"all")
    held.put(4, None, "taken-over", None, 4, b"all")
    assert held.discard_before(4, None, "a4", 3) == 0
    assert held.range() == (1, 4)
    assert held.discard_before(4, None, "taken-over", 3) == 2
    assert held.range() == (3, 4)


def test_nothing_is_left_of_an_application_that_ended(held: Held) -> None:
    held.put(1, "aa", "aa", None, 1, b"all")
    assert held.bytes == 3
    held.clear()
    assert (held.range(), held.bytes, held.chain(1, "aa")) == (None, 0, {})


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
        """What it is made of, newest first."""
        return [self] if self.parent is None else [self, *self.parent.needed]


class HeldMachine(RuleBasedStateMachine):
    """Commits versions as queries do, some several times or on top of an attempt that lost."""

    spark: Any = None
    with_ids = False

    def __init__(self) -> None:
        super().__init__()
        self.held = Held(self.spark)
        self.begun = 0
        self.attempts: list[Attempt] = []
        self.current: dict[tuple[int, str | None], Attempt] = {}
        self.accepted: list[Attempt] = []

    @initialize()
    def first(self) -> None:
        self.commit(0, None, full=True)

    def is_whole(self, attempt: Attempt) -> bool:
        kept = {a.name for a in self.attempts}
        return all(needed.name in kept for needed in attempt.needed)

    def commit(self, after: int, parent: Attempt | None, *, full: bool) -> None:
        self.begun += 1
        name = f"{self.begun:016x}"
        version = after + 1
        data = f"{name} at {version}".encode()
        base = version if full or parent is None else parent.base
        made = Attempt(
            version, name if self.with_ids else None, name, None if base == version else parent, base, data
        )
        wanted = made.parent.name if made.parent else None
        taken = self.held.put(version, made.id, name, wanted, base, data)
        assert taken == (made.parent is None or self.is_whole(made.parent))
        if not taken:
            return
        self.attempts.append(made)
        self.current[version, made.id] = made
        self.accepted = [*self.accepted[:after], made]

    @rule(data=st.data(), full=st.sampled_from([False, False, False, True]))
    def next_version(self, data: st.DataObject, full: bool) -> None:
        # An instance builds on its own attempt, whoever came after it.
        self.commit_after(len(self.accepted), data, full=full)

    @precondition(lambda self: len(self.accepted) > 1)
    @rule(data=st.data(), full=st.booleans())
    def again(self, data: st.DataObject, full: bool) -> None:
        self.commit_after(len(self.accepted) - 1, data, full=full)

    def commit_after(self, version: int, data: st.DataObject, *, full: bool) -> None:
        parents = [a for a in self.attempts if a.version == version]
        self.commit(version, data.draw(st.sampled_from(parents)) if parents else None, full=full)

    @rule(retained=st.integers(0, 3), most=st.integers(0, 3), owns=st.booleans())
    def discard(self, retained: int, most: int, owns: bool) -> None:
        newest = self.accepted[-1]
        horizon = newest.version - retained
        removed = self.held.discard_before(
            newest.version, newest.id, newest.name if owns else "0" * 15 + "x", horizon, most
        )
        first = min([horizon, *(a.base for a in self.attempts if a.version >= horizon)])
        names = sorted({(a.version, a.id or "") for a in self.attempts if a.version < first})
        # Versions go as a whole, so that what is left of the oldest is of use.
        gone = {version for version, _ in names[: most or None]} if owns else set()
        before = len(self.attempts)
        self.attempts = [a for a in self.attempts if a.version not in gone]
        assert removed == before - len(self.attempts)

    @invariant()
    def what_is_kept_is_whole(self) -> None:
        assert self.held.bytes == sum(len(a.data) for a in self.attempts)
        for attempt in self.attempts[-4:]:
            if self.current[attempt.version, attempt.id] is not attempt:
                continue
            objects = self.held.chain(attempt.version, attempt.id)
            if not self.is_whole(attempt):
                assert objects == {}
                continue
            for needed in attempt.needed:
                directory = f"chk-{needed.version}" + (f"_{needed.id}" if needed.id else "")
                owner = self.current[needed.version, needed.id]
                file = "_metadata" if owner is needed else f"_metadata.{needed.name}"
                assert objects[f"{directory}/{file}"] == needed.data


@pytest.mark.slow
@pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])
def test_every_version_that_is_found_is_whole(spark: Any, with_ids: bool) -> None:
    machine = type("Machine", (HeldMachine,), {"spark": spark, "with_ids": with_ids})
    run_state_machine_as_test(machine, settings=settings(max_examples=40 * EFFORT, stateful_step_count=25))


# Through a provider


def grow(provider: Provider, versions: range) -> None:
    for version in versions:
        store = provider.open(version)
        store.put(("a", version), (version, "v"))
        assert store.commit() == version + 1


def of_application(spark: Any) -> Any:
    return spark._jvm.org.apache.spark.sql.statestore.memory.HeldCheckpoints.ofApplication()


def test_the_driver_keeps_no_more_than_is_retained(spark: Any, tmp_path: Path) -> None:
    confs = {"backend__storage": "memory", "backend__numRetained": "2", "backend__snapshotInterval": "3"}
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


def test_a_commit_whose_parent_is_not_kept_keeps_everything(spark: Any, tmp_path: Path) -> None:
    provider = Provider(spark, f"file:{tmp_path}", backend__storage="memory")
    grow(provider, range(2))
    of_application(spark).clear()
    grow(provider, range(2, 3))
    fresh = Provider(spark, f"file:{tmp_path}", backend__storage="memory")
    assert len(fresh.open_read(3).rows()) == 3


def test_another_application_finds_nothing(spark: Any, tmp_path: Path) -> None:
    grow(Provider(spark, f"file:{tmp_path}", backend__storage="memory"), range(1))
    of_application(spark).end()
    fresh = Provider(spark, f"file:{tmp_path}", backend__storage="memory")
    with pytest.raises(Py4JJavaError, match="only on the driver of an application that has ended"):
        fresh.open_read(1)
