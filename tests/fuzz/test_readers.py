"""Whatever bytes a reader is given, it reads them or refuses them: no other error, no memory to speak of."""

from __future__ import annotations

import random
from collections.abc import Iterator

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from tests.effort import EFFORT
from tests.fuzz.mutations import damaged
from tests.fuzz.targets import TARGETS, Target

MOST_MEMORY = 256 << 20
"""What a message of a few KiB can stand for at most, several times."""


@pytest.fixture(autouse=True, scope="module")
def memory() -> Iterator[None]:
    """Fails if Arrow took much at any time."""
    before = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counted)
    yield
    pa.set_memory_pool(before)
    assert counted.max_memory() < MOST_MEMORY


each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())


@each_target
def test_sound_bytes_are_read(target: Target) -> None:
    assert all(map(target.takes, target.seeds))


@each_target
@settings(max_examples=25 * EFFORT)
@given(seed=st.integers(0, 2**32))
def test_damaged_bytes_are_read_or_refused(target: Target, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(8):
        target.takes(damaged(chance.choice(target.seeds), chance))


@each_target
@given(data=st.binary(max_size=300))
@settings(max_examples=30 * EFFORT)
def test_any_bytes_are_read_or_refused(target: Target, data: bytes) -> None:
    target.takes(data)


@each_target
def test_bytes_that_end_anywhere_are_read_or_refused(target: Target) -> None:
    for data in target.seeds[-3:]:
        for end in range(0, len(data), max(1, len(data) // 100)):
            target.takes(data[:end])
