"""Readers accept or refuse any bytes without other errors, and with bounded memory."""

from __future__ import annotations

import random
from collections.abc import Iterator

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from tests.fuzz.mutations import damaged
from tests.fuzz.targets import TARGETS, Target
from tests.support.effort import EFFORT

MOST_MEMORY = 256 << 20
"""Bound on the memory for a message of a few KiB, several times its largest decompressed size."""


@pytest.fixture(autouse=True, scope="module")
def memory() -> Iterator[None]:
    """Fail if Arrow's peak allocation exceeds the bound."""
    before = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counted)
    yield
    pa.set_memory_pool(before)
    assert counted.max_memory() < MOST_MEMORY


each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())


@each_target
def test_readers_accept_valid_bytes(target: Target) -> None:
    assert all(map(target.takes, target.seeds))


@each_target
@settings(max_examples=25 * EFFORT)
@given(seed=st.integers(0, 2**32))
def test_readers_accept_or_reject_damaged_bytes(target: Target, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(8):
        target.takes(damaged(chance.choice(target.seeds), chance))


@each_target
@given(data=st.binary(max_size=300))
@settings(max_examples=30 * EFFORT)
def test_readers_accept_or_reject_arbitrary_bytes(target: Target, data: bytes) -> None:
    target.takes(data)
