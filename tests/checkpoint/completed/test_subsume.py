"""Which checkpoints newer ones take the place of."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_statestore.checkpoint.completed.properties import CheckpointProperties
from spark_statestore.checkpoint.completed.subsume import subsumed

KINDS = {
    "C": CheckpointProperties.for_checkpoint(),
    "S": CheckpointProperties.for_savepoint(),
    "Y": CheckpointProperties.for_sync_savepoint(),
}


def kept(sequence: str, most: int) -> str:
    gone = subsumed([KINDS[kind] for kind in sequence], most)
    return " ".join(f"{kind}{i + 1}" for i, kind in enumerate(sequence) if i not in gone)


@pytest.mark.parametrize(
    ("sequence", "most", "expected"),
    [
        ("", 1, ""),
        ("C", 1, "C1"),
        ("CC", 1, "C2"),
        ("CCC", 2, "C2 C3"),
        ("CCC", 5, "C1 C2 C3"),
        ("CSS", 1, "C1 S3"),
        ("CS", 1, "C1 S2"),
        ("CSC", 1, "C3"),
        ("CSCS", 1, "C3 S4"),
        ("CSCS", 2, "C3 S4"),
        ("CSCS", 3, "S2 C3 S4"),
        ("CSSS", 2, "C1 S4"),
        ("SSS", 1, "S3"),
        ("SSS", 2, "S2 S3"),
        ("SC", 1, "C2"),
        ("CY", 1, "Y2"),
        ("CCSY", 1, "Y4"),
        ("CCSY", 2, "S3 Y4"),
        ("CYC", 1, "C3"),
        ("CYS", 1, "C1 S3"),
    ],
)
def test_which_stay(sequence: str, most: int, expected: str) -> None:
    assert kept(sequence, most) == expected


@given(st.text("CSY", max_size=8), st.integers(1, 5))
def test_the_newest_and_the_last_checkpoint_stay_and_no_more_than_needed_go(sequence: str, most: int) -> None:
    gone = subsumed([KINDS[kind] for kind in sequence], most)
    assert gone == sorted(set(gone))
    left = [i for i in range(len(sequence)) if i not in gone]
    assert len(left) >= min(most, len(sequence))
    if sequence:
        assert left[-1] == len(sequence) - 1
    if "C" in sequence and sequence[-1] != "Y":
        assert sequence.rindex("C") in left
    needed = {len(sequence) - 1} | (
        {sequence.rindex("C")} if "C" in sequence and sequence[-1] != "Y" else set()
    )
    assert len(left) <= max(most, len(needed))


@pytest.mark.parametrize("most", [0, -1])
def test_at_least_one_is_retained(most: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        subsumed([], most)
