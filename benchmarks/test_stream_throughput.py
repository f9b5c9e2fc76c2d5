"""A checkpoint stream takes about the processor time of a plain file and its checksum."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.streams import MOST, Measured, measure


def test_comparison_uses_medians():
    assert Measured(plain=[1, 2, 9], stream=[3, 3, 100]).times == 1.5


@pytest.mark.alone
@pytest.mark.slow
def test_stream_takes_little_more_processor_time_than_a_plain_file_with_its_checksum(tmp_path: Path):
    processor, _ = measure(tmp_path, mebibytes=128, rounds=20)
    assert processor.times <= MOST, f"the stream takes {processor.times:.2f} times the processor time"
