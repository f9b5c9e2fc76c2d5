"""The plan of snapshots and runs keeps its bounds, whatever the sizes of the deltas."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

FAN_OUT = 8
sizes = st.lists(
    st.one_of(st.integers(1, 10), st.integers(1, 10**9), st.integers(0, 30).map(lambda n: 2**n)), max_size=300
)


@pytest.fixture(scope="module")
def policy(spark: Any) -> Any:
    return spark._jvm.org.apache.spark.sql.statestore.SnapshotPolicyTrial


def text(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


def history(policy: Any, deltas: list[int], interval: int, tick: bool = True) -> list[tuple[int, ...]]:
    """Return streams and bytes on top of the base and bytes written, after each delta."""
    return [tuple(map(int, line.split(","))) for line in policy.history(text(deltas), interval, tick)]


def most_streams(deltas: list[int], interval: int) -> float:
    # Each further stream is at least one part in `times` of all newer ones.
    times = min(FAN_OUT - 1, interval)
    return interval + 1 + math.log(sum(deltas) / min(deltas)) / math.log(1 + 1 / times)


def test_runs_keep_the_streams_logarithmic(policy: Any) -> None:
    @settings(max_examples=150, deadline=None)
    @given(deltas=sizes, interval=st.integers(1, 20), tick=st.booleans())
    def check(deltas: list[int], interval: int, tick: bool) -> None:
        for number, (streams, size, written) in enumerate(history(policy, deltas, interval, tick), 1):
            seen = deltas[:number]
            assert size == sum(seen)
            assert streams <= most_streams(seen, interval if tick else 2 * interval)
            # A stream is merged into one that is larger than itself by what is newer.
            assert written <= sum(seen) * (2 + math.log2(len(seen)))

    check()


@pytest.mark.parametrize(
    ("interval", "deltas", "streams", "times"), [(10, 200, 18, 3), (10, 2_000, 25, 4), (2, 200, 9, 6)]
)
def test_equal_deltas_are_merged_once_for_each_level(
    policy: Any, interval: int, deltas: int, streams: int, times: float
) -> None:
    found = history(policy, [1000] * deltas, interval)
    assert max(number for number, _, _ in found) <= streams
    assert found[-1][2] <= times * 1000 * deltas


def test_streams_before_a_compaction_are_not_merged(policy: Any) -> None:
    assert policy.runFrom(text([10] * 30), 0, 10, True) == 0
    assert policy.runFrom(text([10] * 30), 17, 10, True) == 17
    assert policy.runFrom(text([10] * 30), 21, 10, True) == -1
    assert policy.runFrom(text([10] * 15), 0, 10, False) == -1
    assert policy.runFrom("", 0, 10, True) == -1


def test_base_is_due_by_bytes_beyond_a_fresh_snapshot(policy: Any) -> None:
    mib = 1 << 20
    assert not policy.isBaseDue(10 * mib, 10 * mib, text([mib]), 10)
    # The next delta would exceed a quarter.
    assert policy.isBaseDue(10 * mib, 10 * mib, text([mib, mib // 2, mib, mib // 2]), 10)
    # Most rows of the base were removed.
    assert policy.isBaseDue(10 * mib, 5 * mib, text([mib // 8]), 10)
    # The state has grown, by rows that compress worse.
    assert not policy.isBaseDue(10 * mib, 18 * mib, text([8 * mib // 8] * 8), 10)
    assert policy.isBaseDue(10 * mib, 18 * mib, text([11 * mib]), 10)
    # Small, so that only the number of streams counts; streams that cannot be merged.
    assert not policy.isBaseDue(1000, 1000, text([1000] * 10), 10)
    assert policy.isBaseDue(1000, 1000, text([1000] * 11), 10)
    assert not policy.isBaseDue(1000 * mib, 1000 * mib, text([10] * 39), 10)
    assert policy.isBaseDue(1000 * mib, 1000 * mib, text([10] * 40), 10)
    # A base without rows has no size to compare with.
    assert not policy.isBaseDue(0, 0, text([1000]), 10)
    assert policy.isBaseDue(0, 0, text([mib]), 10)
