"""The plan of snapshots and runs keeps its bounds, whatever the sizes of the deltas."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from spark_statestore.files import MemoryFileSystem
from spark_statestore.storage.chains import extend_chain, start_chain
from spark_statestore.storage.file_handles import FileStateHandle
from spark_statestore.storage.incremental_handle import IncrementalStateHandle
from spark_statestore.storage.operator_handles import OperatorStreamStateHandle
from spark_statestore.storage.snapshot_plan import (
    EAGER_LIMIT,
    FAN_OUT,
    HARD_LIMIT,
    NOTHING,
    SMALL_STATE,
    UNBOUNDED,
    WHOLE,
    SnapshotPlan,
    full_up_to,
    is_base_due,
    plan_snapshots,
    run_from,
)

MIB = 1 << 20
INLINE = 256 << 10

sizes = st.lists(
    st.one_of(st.integers(1, 10), st.integers(1, 10**9), st.integers(0, 30).map(lambda n: 2**n)), max_size=300
)


def history(deltas: list[int], interval: int, *, tick: bool = True) -> list[tuple[list[int], int]]:
    """Add deltas one by one to a base that is never due, and merge them as planned.

    Returns the bytes of the streams on top of the base and the bytes that were written, after each delta.
    """
    on_top: list[int] = []
    bytes_written = 0
    after = []
    for delta in deltas:
        on_top = [*on_top, delta]
        bytes_written += delta
        first = run_from(on_top, 0, interval, tick=tick)
        if first is not None:
            run = sum(on_top[first:])
            on_top = [*on_top[:first], run]
            bytes_written += run
        after.append((on_top, bytes_written))
    return after


@settings(max_examples=150, deadline=None)
@given(deltas=sizes, interval=st.integers(1, 20), tick=st.booleans())
def test_runs_keep_the_streams_logarithmic(deltas: list[int], interval: int, tick: bool) -> None:
    times, fewest = min(FAN_OUT - 1, interval), interval if tick else 2 * interval
    for number, (on_top, bytes_written) in enumerate(history(deltas, interval, tick=tick), 1):
        prefix = deltas[:number]
        assert sum(on_top) == sum(prefix)
        # All but those that are too few to be merged are larger than a part of what is newer.
        for at, size in enumerate(on_top[:-fewest]):
            assert size * times > sum(on_top[at + 1 :])
        most = math.log(sum(prefix) / min(prefix)) / math.log(1 + 1 / times)
        assert len(on_top) <= fewest + 1 + most
        # A stream is merged into one that is larger than itself by what is newer.
        assert bytes_written <= sum(prefix) * (2 + math.log2(len(prefix)))


@pytest.mark.parametrize(
    ("interval", "deltas", "streams", "times"), [(10, 200, 18, 3), (10, 2_000, 25, 4), (2, 200, 9, 6)]
)
def test_equal_deltas_are_merged_once_for_each_level(
    interval: int, deltas: int, streams: int, times: float
) -> None:
    steps = history([1000] * deltas, interval)
    assert max(len(on_top) for on_top, _ in steps) <= streams
    assert steps[-1][1] <= times * 1000 * deltas


def test_streams_before_a_compaction_are_not_merged() -> None:
    assert run_from([10] * 30, 0, 10, tick=True) == 0
    assert run_from([10] * 30, 17, 10, tick=True) == 17
    assert run_from([10] * 30, 21, 10, tick=True) is None
    assert run_from([10] * 15, 0, 10, tick=False) is None
    assert run_from([], 0, 10, tick=True) is None


def test_base_is_due_by_bytes_beyond_a_fresh_snapshot() -> None:
    assert not is_base_due(10 * MIB, 10 * MIB, [MIB], 10)
    # The next delta would exceed a quarter.
    assert is_base_due(10 * MIB, 10 * MIB, [MIB, MIB // 2, MIB, MIB // 2], 10)
    # Most rows of the base were removed.
    assert is_base_due(10 * MIB, 5 * MIB, [MIB // 8], 10)
    # The state has grown, by rows that compress worse.
    assert not is_base_due(10 * MIB, 18 * MIB, [8 * MIB // 8] * 8, 10)
    assert is_base_due(10 * MIB, 18 * MIB, [11 * MIB], 10)
    # More on top than in the base, however large a fresh one would be.
    assert not is_base_due(10 * MIB, 100 * MIB, [9 * MIB], 10)
    assert is_base_due(10 * MIB, 100 * MIB, [11 * MIB], 10)
    # Small, so that only the number of streams counts; streams that cannot be merged.
    assert not is_base_due(1000, 1000, [1000] * 10, 10)
    assert is_base_due(1000, 1000, [1000] * 11, 10)
    assert not is_base_due(1000 * MIB, 1000 * MIB, [10] * 39, 10)
    assert is_base_due(1000 * MIB, 1000 * MIB, [10] * 40, 10)
    # A base without rows has no size to compare with.
    assert not is_base_due(0, 0, [1000], 10)
    assert is_base_due(0, 0, [MIB], 10)


def full(
    chain_length: int, on_top: int = 0, *, background: bool = True, tick: bool = False, interval: int = 10
) -> int:
    return full_up_to(chain_length, interval, 1000, on_top, INLINE, background=background, tick=tick)


def test_commit_writes_everything_of_a_small_state_beyond_the_interval() -> None:
    assert full(10) == full(10, tick=True) == NOTHING
    assert full(11) == SMALL_STATE
    # Of a larger one if maintenance called, or if a load would read twice the base.
    assert full(11, tick=True) == full(11, on_top=1001) == full(EAGER_LIMIT * 10) == INLINE


def test_commit_writes_everything_at_the_hard_limit() -> None:
    assert full(0) == UNBOUNDED
    assert full(HARD_LIMIT * 10 - 1) < UNBOUNDED
    assert full(HARD_LIMIT * 10) == UNBOUNDED
    # A short interval limits the deltas, not the runs.
    assert full(HARD_LIMIT * 10 - 1, interval=1) < UNBOUNDED
    # Without snapshots in the background: at the interval.
    assert full(10, background=False) == NOTHING
    assert full(11, background=False) == UNBOUNDED


def chain(base: int, deltas: list[int], rows: int | None = 100) -> IncrementalStateHandle:
    """Return a chain of streams of these sizes: the base of version 1, and the deltas after it."""
    files = MemoryFileSystem()

    def stream(size: int) -> OperatorStreamStateHandle:
        return OperatorStreamStateHandle(
            state_name_to_partition_offsets={},
            delegate_state_handle=FileStateHandle(files, f"/shared/{size}", size, 0),
        )

    handle = start_chain(1, stream(base), rows)
    for version, size in enumerate(deltas, 2):
        handle = extend_chain(handle, version, stream(size))
    return handle


def plan(
    handle: IncrementalStateHandle,
    rows: int = 100,
    *,
    known_since: int | None = 1,
    background: bool = True,
    is_remote: bool = False,
) -> SnapshotPlan:
    return plan_snapshots(
        handle, rows, 10, known_since=known_since, background=background, is_remote=is_remote
    )


def test_plan_of_a_short_chain_is_nothing() -> None:
    assert plan(chain(1000 * MIB, [10])) == SnapshotPlan(INLINE, NOTHING, NOTHING, NOTHING, NOTHING)
    assert plan(chain(1000 * MIB, [10]), is_remote=True).inline_up_to == MIB


def test_plan_names_the_version_that_a_run_starts_from() -> None:
    handle = chain(1000 * MIB, [10] * 15)
    assert (plan(handle).upload, plan(handle).upload_at_tick) == (NOTHING, 1)
    assert plan(chain(1000 * MIB, [10] * 21)).upload == 1
    # As far as the changes are in memory; a load or a compaction leaves none.
    assert plan(handle, known_since=3).upload_at_tick == 3
    assert plan(handle, known_since=16).upload_at_tick == NOTHING
    assert plan(handle, known_since=None).upload_at_tick == NOTHING
    assert plan(handle, background=False).upload_at_tick == NOTHING


def test_plan_is_a_full_snapshot_once_much_is_on_top_or_rows_were_removed() -> None:
    handle = chain(10 * MIB, [3 * MIB])
    assert (plan(handle).upload, plan(handle).upload_at_tick) == (WHOLE, WHOLE)
    assert plan(handle, rows=200).upload == NOTHING
    assert plan(chain(10 * MIB, [MIB]), rows=50).upload == WHOLE
    assert plan(handle, known_since=None).upload == WHOLE
    assert plan(handle, background=False).upload == NOTHING
    # Rows of the base are unknown.
    assert plan(chain(10 * MIB, [MIB], rows=None)).upload == WHOLE
