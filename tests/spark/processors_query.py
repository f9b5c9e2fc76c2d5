"""A query of transformWithState that returns the content of its variables and timers; and input for it."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from tests.spark.processors import EVENT_START
from tests.spark.queries import Output, Query, Rows, unload_all

ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

NO_EMPTY_BATCHES = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("seq", pa.int64()),
        ("op", pa.string()),
        ("n", pa.int64()),
        ("v", pa.string()),
        ("ts", pa.timestamp("us", tz="UTC")),
    ]
)

CHANGES = [
    *("set", "set", "clear", "append", "append", "extend", "replace", "clear_list"),
    *("put", "put", "remove", "clear_map", "change_while_reading"),
]
"""Operations of an `Interpreter` on its variables."""

CLOCK = re.compile(r"(\w*[eE]xpiration\w*'?)(?:=|: )\d+")


class ProcessorQuery(Query):
    """A query with named state, which is built from the stream of its input and the number of the run.

    Set `keeps_clock` if some of its state contains the time of day, which is then ignored.
    """

    keeps_clock = False
    number = 0

    def state(self) -> Counter[str]:
        """Return the rows of the newest version of all variables and timers, read in every way."""
        counts: Counter[str] = Counter()
        with self._readable():
            operators = self.spark.read.format("state-metadata").load(str(self.checkpoint)).collect()
            for operator in operators:
                properties = json.loads(operator.operatorProperties)
                reads = [{"readRegisteredTimers": "true"}] if properties["timeMode"] != "NoTime" else []
                for variable in properties["stateVariables"]:
                    counts[f"{operator.operatorId} {variable}"] += 1
                    if variable["stateVariableType"] == "TimerState":
                        continue
                    reads.append({"stateVarName": variable["stateName"]})
                    if variable["stateVariableType"] != "ValueState":
                        reads.append(reads[-1] | {"flattenCollectionTypes": "false"})
                for options in reads:
                    reader = self.spark.read.format("statestore").option("operatorId", operator.operatorId)
                    rows = reader.options(**options).load(str(self.checkpoint))
                    if "map_value" in rows.columns:
                        # In Python not all types can be keys of a map; and it has no order.
                        rows = rows.selectExpr("* except (map_value)", "map_entries(map_value) as map_value")
                    counts.update(
                        f"{operator.operatorId} {options} {self._row_text(row)}" for row in rows.collect()
                    )
        return counts

    def _built(self, events: Any) -> Any:
        return self.build(events, self.number)

    def totals(self) -> list[list[int]]:
        """Return the number of rows that each batch of the last run left in each operator."""
        return [[operator["numRowsTotal"] for operator in p["stateOperators"]] for p in self.progress]

    def _row_text(self, row: Any) -> str:
        columns = {
            name: sorted(map(repr, value)) if name == "map_value" else value
            for name, value in row.asDict().items()
        }
        return CLOCK.sub(r"\1", repr(columns)) if self.keeps_clock else repr(columns)


def batches(count: int, timers: Sequence[int] = (), rows: int = 30, *, large: bool = False) -> list[Rows]:
    """Generate input for an `Interpreter`, in batches ten minutes apart.

    `timers` are milliseconds from now, or from the start of event time. With `large` some values
    of the first batch have a megabyte.
    """
    chosen = random.Random(6)
    ops = CHANGES + ["timer", "timer", "timer", "no_timer"] * bool(timers)
    start = datetime.fromtimestamp(EVENT_START / 1000, UTC)

    def row(number: int, seq: int) -> dict[str, Any]:
        op = chosen.choice(ops)
        return {
            "k": chosen.choice([None, "", "a", "b", "größe", f"only in {number}"]),
            "seq": seq,
            "op": op,
            "n": chosen.choice(timers) if op == "timer" else chosen.randrange(8),
            "v": chosen.choice([None, "", "x", "y", "a value of more than eight bytes"]),
            # Some are late.
            "ts": start
            + timedelta(minutes=10 * number + chosen.randrange(10) - chosen.choice([0, 0, 0, 0, 20])),
        }

    result = [[row(number, seq) for seq in range(rows)] for number in range(count)]
    if large:
        changed = [row(0, rows) | {"k": "large", "op": op} for op in ("set", "append", "put")]
        result[0] += [change | {"v": "x" * 2**20} for change in changed]
    return result


Life = tuple[list[Output], list[list[list[int]]], Counter[str]]
"""Output of each run, number of rows after each batch of each run, and final state."""

# Builds a query from the stream of the input; the number is that of the run.
Build = Callable[[Any, int], Any]


def in_scala(has: Sequence[str], gone: Sequence[str], ttl: Sequence[int], time: str, mode: str) -> Build:
    """Return the Scala variant of each run, with other variables and another TTL."""

    def build(stream: Any, run: int) -> Any:
        from pyspark.sql import DataFrame

        session = stream.sparkSession
        # Scala's values of simple types are not null.
        steps = stream.selectExpr(
            "coalesce(k, 'none') as k", "seq", "op", "n", "coalesce(v, 'none') as v", "ts"
        )
        if time == "eventTime":
            steps = steps.withWatermark("ts", "5 minutes")
        start = session.createDataFrame(
            [("a", 0, "", 0, "old"), ("only at the start", 0, "", 0, "")],
            "k string, seq bigint, op string, n bigint, v string",
        )
        processors = session._jvm.org.apache.spark.sql.statestore.transform.Processors
        jdf = processors.interpreted(
            steps._jdf, start._jdf, has[run], gone[run], ttl[run], time, EVENT_START, mode
        )
        return DataFrame(jdf, session)

    return build


def life_of(query: ProcessorQuery, parts: Sequence[Sequence[Rows]]) -> Life:
    """Return a query's output, its numbers of rows, and its final rows; one run for each part.

    The last run starts with no store in memory.
    """
    outputs, totals = [], []
    for number, part in enumerate(parts):
        query.number = number
        query.feed(*part)
        if number == len(parts) - 1:
            unload_all(query.spark)
        outputs.append(query.run())
        totals.append(query.totals())
    return outputs, totals, query.state()
