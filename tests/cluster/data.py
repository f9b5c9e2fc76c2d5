"""The input of the queries: files of rows, one for each batch, none of them too late."""

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
"""Key of the rows that come last, far in the future: they let every query put out what it still holds."""
END = 3_000_000_000
"""The least of their ids."""

_START = datetime(2024, 1, 1, tzinfo=UTC)
_ROWS = 40


class Input:
    """Writes the files of a seed into a directory.

    Parameters
    ----------
    directory
        Where they go.
    seed
        What they hold.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.parts = 0
        self._seed = seed
        directory.mkdir(parents=True, exist_ok=True)

    def feed(self) -> None:
        """Add the next file."""
        self._write(rows(self._seed, self.parts))

    def flush(self) -> None:
        """Add the last two: the first one moves the watermark, and the second one is there to see it."""
        for _ in range(2):
            at = _START + timedelta(days=365, minutes=self.parts)
            # Of every remainder, so that either side of a join gets some.
            self._write([{"id": END + n, "part": self.parts, "ts": at, "k": FLUSH, "v": 0} for n in range(3)])

    def _write(self, made: list[dict[str, Any]]) -> None:
        path = self.directory / f"{self.parts:05}.parquet"
        hidden = path.with_name(f".{path.name}")
        pq.write_table(pa.Table.from_pylist(made, SCHEMA), hidden)
        # Files are taken in the order of their times.
        os.utime(hidden, (1_700_000_000 + self.parts, 1_700_000_000 + self.parts))
        hidden.rename(path)
        self.parts += 1


def rows(seed: int, part: int) -> list[dict[str, Any]]:
    """The rows of a part: a minute of its own, some of them late by up to 90 seconds, some repeated.

    A part's rows are at most 210 seconds older than the newest one of the part before, which is less than the
    watermark allows.
    """
    chosen = random.Random(f"{seed} {part} repeats")
    before = [row for earlier in (part - 2, part - 1) if earlier >= 0 for row in _own(seed, earlier)]
    repeated = chosen.sample(before, min(len(before), 6))
    made = _own(seed, part) + [row | {"part": part} for row in repeated]
    chosen.shuffle(made)
    return made


def is_of_the_end(key: dict[str, Any]) -> bool:
    """Whether a key of some state is that of the rows that come last."""
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
