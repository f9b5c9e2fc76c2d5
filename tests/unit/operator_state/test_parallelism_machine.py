"""State machine of operator state in subtasks against lists and dicts.

It has crashes, retries, rollbacks, and changes of parallelism.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from spark_statestore.files import open_file_system
from spark_statestore.operator_state import ListStateDescriptor, MapStateDescriptor, QueryOperatorState
from spark_statestore.operator_state.parts import StatePart
from spark_statestore.operator_state.state_directory import OperatorStateDirectory
from tests.support.effort import EFFORT

SPLIT = ("a-split", "z-split")
UNION = "m-union"
RULES = MapStateDescriptor("rules", pa.string(), pa.int64())
RETAINED = 3


def of_lists(name: str) -> ListStateDescriptor[int]:
    return ListStateDescriptor(name, pa.int64())


@dataclass
class Model:
    """The state that a batch left: the lists of each subtask, and the map that all of them have."""

    lists: list[dict[str, list[int]]] = field(default_factory=lambda: [{}])
    rules: dict[str, int] = field(default_factory=dict)

    def rescaled(self, parallelism: int) -> list[dict[str, list[int]]]:
        """Return the share of each subtask, computed element by element."""
        old = self.lists
        if len(old) == parallelism:
            return [{name: list(elements) for name, elements in lists.items()} for lists in old]
        new: list[dict[str, list[int]]] = [{} for _ in range(parallelism)]
        first = 0
        for name in SPLIT:
            elements = [element for lists in old for element in lists.get(name, [])]
            longer = len(elements) % parallelism
            for turn in range(parallelism):
                length = len(elements) // (parallelism - turn) + bool(len(elements) % (parallelism - turn))
                new[(first + turn) % parallelism][name] = elements[:length]
                del elements[:length]
            first = (first + longer) % parallelism
        for lists in new:
            lists[UNION] = [element for lists in old for element in lists.get(UNION, [])]
        return new


FAILURES = st.sampled_from(["none", "none", "none", "in the block", "after the block"])


class ParallelMachine(RuleBasedStateMachine):
    """Batches of 1 to 7 subtasks that publish in any order, fail, are run twice, or die with the driver."""

    def __init__(self) -> None:
        super().__init__()
        self.location = f"memory://{uuid.uuid4()}"
        self.objects: dict[tuple[int, int], QueryOperatorState] = {}
        self.objects_of_another_driver: dict[tuple[int, int], QueryOperatorState] = {}
        self.history: dict[int, Model] = {}
        self.next = 0
        self.created = 0

    def opened(self, subtask: int, parallelism: int) -> QueryOperatorState:
        key = subtask, parallelism
        if key not in self.objects:
            numbers = {} if parallelism == 1 else {"subtask": subtask, "parallelism": parallelism}
            self.objects[key] = QueryOperatorState(self.location, "sink", **numbers, num_retained=RETAINED)
        return self.objects[key]

    def change(self, store: Any, share: dict[str, list[int]], counts: list[int], *, keeps_own: bool) -> dict:
        """Compare a subtask's state with the model's share, change it, and return what it should be."""
        expected = dict(share)
        for name, count in zip(SPLIT, counts, strict=False):
            # A state that is not accessed stays as it is.
            if count == 0:
                continue
            state = store.get_list_state(of_lists(name))
            assert state.get() == share.get(name, []), name
            added = list(range(self.created, self.created + count))
            self.created += count
            state.add_all(added)
            expected[name] = [*share.get(name, []), *added]
        if counts[2] or keeps_own:
            union = store.get_union_list_state(of_lists(UNION))
            assert union.get() == share.get(UNION, []), UNION
            added = list(range(self.created, self.created + counts[2]))
            self.created += counts[2]
            expected[UNION] = [*(() if keeps_own else share.get(UNION, [])), *added]
            union.update(expected[UNION])
        return expected

    @rule(
        parallelism=st.integers(1, 7),
        order=st.randoms(use_true_random=False),
        counts=st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=7, max_size=7),
        failures=st.lists(FAILURES, min_size=7, max_size=7),
        dies_after=st.none() | st.integers(0, 7),
        entry=st.none() | st.tuples(st.sampled_from("abc"), st.integers(0, 9)),
        is_committed=st.booleans(),
        early=st.booleans(),
    )
    def run_batch(
        self,
        parallelism: int,
        order: Any,
        counts: list[list[int]],
        failures: list[str],
        dies_after: int | None,
        entry: tuple[str, int] | None,
        is_committed: bool,
        early: bool,
    ) -> None:
        """Run the next batch: all its subtasks, or those that come before the driver's end."""
        earlier = {batch: model for batch, model in self.history.items() if batch < self.next}
        before = earlier[max(earlier)] if earlier else Model()
        shares = before.rescaled(parallelism)
        lists: list[dict[str, list[int]]] = [{} for _ in shares]
        rules = before.rules | (dict([entry]) if entry else {})
        # Once subtasks have begun, they may have discarded all that is older.
        self.history = {batch: earlier[batch] for batch in sorted(earlier)[1 - RETAINED :]}
        subtasks = list(range(parallelism))
        order.shuffle(subtasks)
        for position, subtask in enumerate(subtasks):
            if position == dies_after:
                self.objects.clear()
                return
            for attempt in [failures[subtask], "none"][failures[subtask] == "none" :]:
                try:
                    with self.opened(subtask, parallelism).batch(self.next) as store:
                        broadcast = store.get_broadcast_state(RULES)
                        assert dict(broadcast.items()) == before.rules
                        broadcast.put_all(rules)
                        lists[subtask] = self.change(
                            store,
                            shares[subtask],
                            counts[subtask],
                            # It would be a multiple of what it was after each change.
                            keeps_own=parallelism != len(before.lists),
                        )
                        if early:
                            store.snapshot()
                        if attempt == "in the block":
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    assert attempt == "in the block"
                    assert all(self.stored_parts().values())
                if attempt == "after the block":
                    # Published, and the executor is lost.
                    del self.objects[subtask, parallelism]
        self.history[self.next] = Model(lists, rules)
        expected = [
            (batch, subtask) for batch, model in self.history.items() for subtask in range(len(model.lists))
        ]
        keys = sorted((part.batch, part.subtask) for part in self.stored_parts())
        # Older ones are left if a driver died before all its subtasks had begun.
        assert [key for key in keys if key[0] >= min(self.history)] == expected
        assert len({batch for batch, _ in keys}) <= RETAINED
        if is_committed:
            self.next += 1
            self.write_commit_log()

    def committed(self) -> list[int]:
        return sorted(batch for batch in self.history if batch < self.next)

    def write_commit_log(self) -> None:
        """Let Spark's commit log have the batches before the next one."""
        files, root = open_file_system(self.location)
        files.delete_directory(f"{root.rstrip('/')}/commits", recursive=True)
        for batch in range(self.next):
            files.create(f"{root.rstrip('/')}/commits/{batch}", b"")

    @precondition(lambda self: len(self.committed()) > 1)
    @rule(
        data=st.data(), counts=st.lists(st.integers(0, 3), min_size=3, max_size=3), keeps_object=st.booleans()
    )
    def run_late(self, data: st.DataObject, counts: list[int], keeps_object: bool) -> None:
        """Run a task of a batch that was run: the driver no longer awaits it."""
        batches = self.committed()
        position = data.draw(st.integers(1, len(batches) - 1))
        before, model = (self.history[batch] for batch in batches[position - 1 : position + 1])
        parallelism = len(model.lists)
        subtask = data.draw(st.integers(0, parallelism - 1))
        if not keeps_object:
            self.objects.pop((subtask, parallelism), None)
        share = before.rescaled(parallelism)[subtask]
        with self.opened(subtask, parallelism).batch(batches[position]) as store:
            store.get_broadcast_state(RULES).put_all(model.rules)
            keeps_own = parallelism != len(before.lists)
            model.lists[subtask] = self.change(store, share, counts, keeps_own=keeps_own)

    def stored_parts(self) -> dict[StatePart, bool]:
        """Return the parts in storage, each with True if it is published."""
        files, root = open_file_system(self.location)
        return OperatorStateDirectory(files, f"{root.rstrip('/')}/operator-state/sink", "sink").list()

    @rule()
    def another_driver_takes_over(self) -> None:
        self.objects, self.objects_of_another_driver = self.objects_of_another_driver, self.objects

    @rule()
    def restart(self) -> None:
        """Lose all that is in memory."""
        self.objects.clear()

    @precondition(lambda self: self.history)
    @rule(data=st.data(), is_rollback=st.booleans())
    def set_back(self, data: st.DataObject, is_rollback: bool) -> None:
        """Continue after an earlier batch that is retained; a rollback removes the state of later ones."""
        self.next = 1 + data.draw(st.sampled_from(sorted(self.history)))
        self.write_commit_log()
        if is_rollback:
            self.history = {batch: model for batch, model in self.history.items() if batch < self.next}
            files, root = open_file_system(self.location)
            for part in self.stored_parts():
                if part.batch >= self.next:
                    directory = f"{root.rstrip('/')}/operator-state/sink/{part.name.directory}"
                    files.delete_directory(directory, recursive=True)

    @invariant()
    def retained_batches_are_as_in_the_model(self) -> None:
        """Compare every retained batch: all of it, and a subtask's share at another parallelism."""
        whole = QueryOperatorState(self.location, "sink")
        assert set(self.history) <= set(whole.batches())
        for batch, model in self.history.items():
            self.compare(whole.read(batch), model.rescaled(1)[0], model.rules)
            assert len(whole.verify(batch)) == len(model.lists)
        if self.history:
            newest = max(self.history)
            model = self.history[newest]
            for parallelism in (len(model.lists), 3):
                shares = model.rescaled(parallelism)
                for subtask, share in enumerate(shares):
                    state = QueryOperatorState(
                        self.location, "sink", subtask=subtask, parallelism=parallelism
                    )
                    self.compare(state.read(newest), share, model.rules)

    @staticmethod
    def compare(store: Any, share: dict[str, list[int]], rules: dict[str, int]) -> None:
        for name in SPLIT:
            assert store.get_list_state(of_lists(name)).get() == share.get(name, []), name
        assert store.get_union_list_state(of_lists(UNION)).get() == share.get(UNION, [])
        assert dict(store.get_broadcast_state(RULES).items()) == rules


def test_partitioned_operator_state_agrees_with_lists_and_dicts() -> None:
    run_state_machine_as_test(
        ParallelMachine, settings=settings(max_examples=25 * EFFORT, stateful_step_count=15)
    )
