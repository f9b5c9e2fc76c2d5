"""Redistribution of an operator's state to another number of subtasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_statestore.storage.operator_handles import (
    Mode,
    OperatorStateHandle,
    OperatorStreamStateHandle,
    StateMetaInfo,
)
from spark_statestore.storage.stream_handles import StreamStateHandle

Handles = Sequence[Sequence[OperatorStateHandle | None]]


class OperatorStateRepartitioner(ABC):
    """Redistribution of handles to subtasks."""

    @abstractmethod
    def repartition_state(self, previous: Handles, old_parallelism: int, new_parallelism: int) -> Handles:
        """Return the handles of each new subtask; nothing is read or written, and `previous` is not changed.

        Parameters
        ----------
        previous
            The handles of each old subtask; those that are None are skipped.
        old_parallelism, new_parallelism
            Numbers of subtasks.

        Returns
        -------
        sequence of sequence of OperatorStateHandle
            The handles of each new subtask. Several may refer to one stream, so they are
            discarded with the checkpoint only, never one by one.

        Raises
        ------
        TypeError
            If `previous` is None.
        ValueError
            If a number of subtasks is not positive, or not that of `previous`.
        """


@dataclass(frozen=True, slots=True)
class _Part:
    """The elements of a state in one old handle; `source` is the handle's index."""

    source: int
    subtask: int
    stream: StreamStateHandle
    name: str
    meta: StateMetaInfo

    def with_offsets(self, offsets: tuple[int, ...]) -> _Part:
        """Return the part with some of its offsets."""
        return replace(self, meta=StateMetaInfo(offsets, self.meta.distribution_mode))


# The share of one new subtask in each old handle, by the handle's position.
_Share = dict[int, tuple[StreamStateHandle, dict[str, StateMetaInfo]]]


class RoundRobinOperatorStateRepartitioner(OperatorStateRepartitioner):
    """Redistribution of lists in runs that differ in length by one element at most.

    States are dealt out in the order of their names, each starting where the one before stopped
    giving a longer run; union lists go to all subtasks, and of broadcast states each subtask gets one.
    With the same number of subtasks, lists stay where they are.

    Corrects what the specification of Flink's class calls quirks: the order of states does not depend on a
    hash table; with the same number of subtasks a broadcast state is given only to subtasks that have none; a
    list without elements keeps its name, with subtask 0; handles that share a stream are added up, and never
    replace one another.
    """

    def repartition_state(self, previous: Handles, old_parallelism: int, new_parallelism: int) -> Handles:
        if previous is None:
            raise TypeError("there must be a list of handles for each old subtask, got None")
        if new_parallelism < 1:
            raise ValueError(f"the new number of subtasks is {new_parallelism}, but it must be 1 or more")
        if len(previous) != old_parallelism:
            raise ValueError(
                f"there are handles of {len(previous)} subtasks, but the operator had {old_parallelism}. "
                "Give a list for each old subtask, in their order; it may be empty."
            )
        parts = _parts_by_mode_and_name(previous)
        if old_parallelism == new_parallelism:
            return self._keep(previous, parts, new_parallelism)
        shares: list[_Share] = [{} for _ in range(new_parallelism)]
        start = 0
        for states in parts[Mode.SPLIT_DISTRIBUTE].values():
            start = _deal(states, shares, start)
        _give_all(parts[Mode.UNION], shares)
        for entries in parts[Mode.BROADCAST].values():
            for number, share in enumerate(shares):
                _give(share, entries[number % len(entries)])
        return [_handles(share) for share in shares]

    def _keep(
        self, previous: Handles, parts: dict[Mode, dict[str, list[_Part]]], parallelism: int
    ) -> Handles:
        lacking: dict[str, list[int]] = {}
        for name, entries in parts[Mode.BROADCAST].items():
            reported = {entry.subtask for entry in entries}
            if len(reported) < parallelism:
                lacking[name] = [n for n in range(parallelism) if n not in reported]
        if not parts[Mode.UNION] and not lacking:
            return previous
        shares: list[_Share] = [{} for _ in range(parallelism)]
        for mode in (Mode.SPLIT_DISTRIBUTE, Mode.BROADCAST):
            for entries in parts[mode].values():
                for entry in entries:
                    _give(shares[entry.subtask], entry)
        _give_all(parts[Mode.UNION], shares)
        for name, subtasks in lacking.items():
            donors = parts[Mode.BROADCAST][name]
            for subtask in subtasks:
                _give(shares[subtask], donors[subtask % len(donors)])
        return [_handles(share) for share in shares]


def _parts_by_mode_and_name(previous: Handles) -> dict[Mode, dict[str, list[_Part]]]:
    parts: dict[Mode, dict[str, list[_Part]]] = {mode: {} for mode in Mode}
    source = 0
    for subtask, handles in enumerate(previous):
        for handle in handles:
            if handle is None:
                continue
            for name, meta in handle.state_name_to_partition_offsets.items():
                part = _Part(source, subtask, handle.delegate_state_handle, name, meta)
                parts[meta.distribution_mode].setdefault(name, []).append(part)
            source += 1
    return {mode: dict(sorted(states.items())) for mode, states in parts.items()}


def _deal(parts: list[_Part], shares: list[_Share], start: int) -> int:
    """Give each subtask a run of a state's elements; return the subtask with which the next state starts."""
    count = len(shares)
    total = sum(len(part.meta.offsets) for part in parts)
    if total == 0:
        _give(shares[0], parts[0])
        return start
    base, longer = divmod(total, count)
    ends: list[int] = []
    for number in range(count):
        ends.append((ends[-1] if ends else 0) + base + (number < longer))
    begin = 0
    for number, end in enumerate(ends):
        share = shares[(start + number) % count]
        before = 0
        for part in parts:
            offsets = part.meta.offsets[max(begin - before, 0) : max(end - before, 0)]
            before += len(part.meta.offsets)
            if offsets:
                _give(share, part.with_offsets(offsets))
        begin = end
    return (start + longer) % count


def _give_all(states: dict[str, list[_Part]], shares: list[_Share]) -> None:
    """Give all of each state to each subtask."""
    for parts in states.values():
        for part in _distinct(parts):
            for share in shares:
                _give(share, part)


def _distinct(parts: list[_Part]) -> list[_Part]:
    """Return each element once: after a restore without a snapshot, all subtasks have the same ones."""
    offsets_by_stream: dict[StreamStateHandle, set[int]] = {}
    distinct = []
    for part in parts:
        earlier = offsets_by_stream.setdefault(part.stream, set())
        offsets = tuple(offset for offset in part.meta.offsets if offset not in earlier)
        earlier.update(offsets)
        if offsets == part.meta.offsets:
            distinct.append(part)
        elif offsets:
            distinct.append(part.with_offsets(offsets))
    return distinct


def _give(share: _Share, part: _Part) -> None:
    _, states = share.setdefault(part.source, (part.stream, {}))
    states[part.name] = part.meta


def _handles(share: _Share) -> list[OperatorStateHandle]:
    """Return the handles of a subtask, in the order of the old ones; neighbours in one stream are one."""
    merged: list[tuple[StreamStateHandle, dict[str, StateMetaInfo]]] = []
    for _, (stream, states) in sorted(share.items(), key=lambda item: item[0]):
        if not merged or merged[-1][0] != stream:
            merged.append((stream, {}))
        into = merged[-1][1]
        for name, meta in states.items():
            present = into.get(name)
            if present is None or meta.distribution_mode is Mode.BROADCAST:
                into[name] = meta
            else:
                into[name] = StateMetaInfo(present.offsets + meta.offsets, meta.distribution_mode)
    return [
        OperatorStreamStateHandle(state_name_to_partition_offsets=states, delegate_state_handle=stream)
        for stream, states in merged
    ]
