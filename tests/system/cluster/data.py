"""The input of the queries: files of rows, one for each batch, all within the watermark delay."""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("part", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("k", pa.string()),
        ("v", pa.int64()),
    ]
)
COLUMNS = "id bigint, part bigint, ts timestamp, k string, v bigint"

WATERMARK = "5 minutes"
FLUSH = "flush"
"""Key of the last rows, far in the future: they make every query emit its remaining state."""
END = 3_000_000_000
"""Smallest of their ids."""

_START = datetime(2024, 1, 1, tzinfo=UTC)
_ROWS = 40


class Input:
    """Writer of the input files, whose content a seed determines."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.parts = 0
        self._seed = seed
        directory.mkdir(parents=True, exist_ok=True)

    def feed(self) -> None:
        self._write(rows(self._seed, self.parts))

    def flush(self) -> None:
        """Write the last two files: one advances the watermark, the other triggers a batch after it."""
        for _ in range(2):
            at = _START + timedelta(days=365, minutes=self.parts)
            # One id for each remainder, so that both sides of a join have rows.
            self._write([{"id": END + n, "part": self.parts, "ts": at, "k": FLUSH, "v": 0} for n in range(3)])

    def _write(self, rows: list[dict[str, Any]]) -> None:
        path = self.directory / f"{self.parts:05}.parquet"
        hidden = path.with_name(f".{path.name}")
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), hidden)
        # Files are read in the order of their modification times.
        os.utime(hidden, (1_700_000_000 + self.parts, 1_700_000_000 + self.parts))
        hidden.rename(path)
        self.parts += 1


def rows(seed: int, part: int) -> list[dict[str, Any]]:
    """Return the rows of a part: a minute of event time, some late by up to 90 seconds, some repeated."""
    # At most 210 seconds older than the newest row of the part before: less than the watermark allows.
    chosen = random.Random(f"{seed} {part} repeats")
    before = [row for earlier in (part - 2, part - 1) if earlier >= 0 for row in _own(seed, earlier)]
    repeated = chosen.sample(before, min(len(before), 6))
    part_rows = _own(seed, part) + [row | {"part": part} for row in repeated]
    chosen.shuffle(part_rows)
    return part_rows


def is_of_the_end(key: dict[str, Any]) -> bool:
    return any(value == FLUSH or (isinstance(value, int) and value >= END) for value in key.values())


def _own(seed: int, part: int) -> list[dict[str, Any]]:
    chosen = random.Random(f"{seed} {part}")
    return [
        {
            "id": part * _ROWS + number,
            "part": part,
            "ts": _START + timedelta(minutes=part, seconds=chosen.randint(-90, 60)),
            "k": f"key {chosen.randrange(8)}",
            "v": chosen.randrange(1000),
        }
        for number in range(_ROWS)
    ]
