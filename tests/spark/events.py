"""A deterministic table of events: late, repeated, out of order, with nulls, decimals and structs."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("k", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("big", pa.decimal128(38, 6)),
        ("x", pa.float64()),
        ("who", pa.struct([("name", pa.string()), ("age", pa.int32())])),
        ("tags", pa.list_(pa.string())),
    ]
)

START = datetime(2024, 1, 1, tzinfo=UTC)

KEYS = [None, "", "a", "b", "größe", "a key that is longer than eight bytes"]
AMOUNTS = [None, Decimal("0.00"), Decimal("-1.05"), Decimal("9999999999.99")]
BIGS = [None, Decimal("0.000000"), Decimal("-12345678901234567890123456789012.345678")]
XS = [None, 0.0, -0.0, float("nan"), float("inf"), -1.5]
WHOS = [None, {"name": None, "age": None}, {"name": "Ada", "age": None}, {"name": "Zoë", "age": 36}]
TAGS = [None, [], ["x"], ["x", None, "a longer tag"]]


def batches(count: int, rows: int = 24) -> list[list[dict[str, Any]]]:
    """Return batches ten minutes apart; some of their rows are repeated, some late, some far too late."""
    chosen = random.Random(4)
    earlier: list[dict[str, Any]] = []
    result = []
    for number in range(count):
        batch = []
        for _ in range(rows):
            if earlier and chosen.random() < 0.25:
                batch.append(chosen.choice(earlier[-3 * rows :]))
                continue
            late = chosen.choice([0, 0, 0, 8, 25, 90])
            batch.append(
                {
                    "id": chosen.randrange(400),
                    "ts": START + timedelta(minutes=10 * number - late, seconds=chosen.randrange(600)),
                    "k": chosen.choice(KEYS),
                    "amount": chosen.choice(AMOUNTS),
                    "big": chosen.choice(BIGS),
                    "x": chosen.choice(XS),
                    "who": chosen.choice(WHOS),
                    "tags": chosen.choice(TAGS),
                }
            )
        chosen.shuffle(batch)
        earlier += batch
        result.append(batch)
    return result
