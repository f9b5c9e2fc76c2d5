"""StatefulProcessors that execute the operations in their input. Spark's Python workers import the module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

EVENT_START = 1_704_067_200_000
"""Start of event time in milliseconds."""

DAY = 86_400_000

OUTPUT = "k string, event string, content string"
"""Output schema of an `Interpreter`."""


def _texts(rows: Iterable[Any]) -> list[str]:
    # PySpark 4.0 returns some numbers as those of numpy.
    return sorted(
        repr([getattr(value, "item", lambda value=value: value)() for value in row]) for row in rows
    )


class Interpreter(StatefulProcessor):
    """Executes the `op` of each row on its state, and outputs the state afterwards.

    Rows have `seq`, which orders those of a batch, `op`, a number `n` and a value `v`.

    Parameters
    ----------
    value
        Type of `v`.
    ttl
        TTL of values in milliseconds. With 1 they last for the rest of the batch only.
    timers
        Time mode of timers: "event", "processing", or none.
    pandas
        Whether rows are passed as pandas frames.
    names
        Names of the value, the list and the map.
    """

    def __init__(
        self,
        value: str,
        *,
        ttl: int | None = None,
        timers: str | None = None,
        pandas: bool = False,
        names: Sequence[str] = ("one", "many", "named"),
    ) -> None:
        self._names = names
        self._value = value
        self._ttl = ttl
        self._timers = timers
        self._pandas = pandas

    @property
    def uses_pandas(self) -> bool:
        """True if rows are passed as pandas frames."""
        return self._pandas

    def init(self, handle: Any) -> None:
        self._handle = handle
        schema = f"v {self._value}"
        single, many, named = self._names
        self.single = handle.getValueState(single, schema, self._ttl)
        self.many = handle.getListState(many, schema, self._ttl)
        self.named = handle.getMapState(named, "n bigint, v " + self._value, schema, self._ttl)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        for row in self._rows([initialState]):
            self.single.update((row.v,))
            self.many.appendValue((row.v,))
            self.named.updateValue((-1, row.v), (row.v,))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for row in sorted(self._rows(rows), key=lambda row: row.seq):
            getattr(self, "do_" + row.op)(row, self._now(timerValues))
        yield self._output(key, "rows", self._content(timerValues), timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        at = expiredTimerInfo.getExpiryTimeInMs()
        content = self._content(timerValues)
        if self._timers == "processing":
            # Due in the next batch.
            self._handle.registerTimer(self._now(timerValues) + 1)
        elif at % 4 == 1:
            # One that is due already, and a future one.
            self._handle.registerTimer(at - 1)
            self._handle.registerTimer(at + 600_001)
        event = f"timer {at}" if self._timers == "event" else "timer"
        yield self._output(key, event, content, timerValues)

    def do_set(self, row: Any, now: int) -> None:
        self.single.update((row.v,))

    def do_clear(self, row: Any, now: int) -> None:
        self.single.clear()

    def do_append(self, row: Any, now: int) -> None:
        self.many.appendValue((row.v,))

    def do_extend(self, row: Any, now: int) -> None:
        self.many.appendList([(row.v,)] * (1 + int(row.n) % 3))

    def do_replace(self, row: Any, now: int) -> None:
        self.many.put([(row.v,), (None,), (row.v,)])

    def do_clear_list(self, row: Any, now: int) -> None:
        self.many.clear()

    def do_put(self, row: Any, now: int) -> None:
        self.named.updateValue((int(row.n) % 4, row.v), (row.v,))

    def do_remove(self, row: Any, now: int) -> None:
        for key in list(self.named.keys()):
            if key[0] == int(row.n) % 4:
                self.named.removeKey(key)

    def do_clear_map(self, row: Any, now: int) -> None:
        self.named.clear()

    def do_change_while_reading(self, row: Any, now: int) -> None:
        """Leave iterators unfinished, and change the state below them."""
        values, names = self.many.get(), self.named.keys()
        for _ in zip(values, names, strict=False):
            self.many.appendValue((row.v,))
            self.named.updateValue((5, row.v), (None,))
            break

    def do_timer(self, row: Any, now: int) -> None:
        self._handle.registerTimer(now + int(row.n))

    def do_no_timer(self, row: Any, now: int) -> None:
        for at in islice(sorted(self._handle.listTimers()), 1):
            self._handle.deleteTimer(at)

    def do_fail_once(self, row: Any, now: int) -> None:
        """Fail unless a file of that name exists, and create it."""
        marker = Path(row.v)
        if not marker.exists():
            marker.touch()
            raise ValueError("this processor fails once")

    def _now(self, times: Any) -> int:
        # Event time starts with the input; there is no watermark yet.
        return EVENT_START if self._timers == "event" else times.getCurrentProcessingTimeInMs()

    def _content(self, times: Any) -> dict[str, Any]:
        entries = list(self.named.iterator())
        names, entry_values = zip(*entries, strict=True) if entries else ((), ())
        assert _texts(names) == _texts(self.named.keys())
        assert _texts(entry_values) == _texts(self.named.values())
        assert all(self.named.containsKey(name) for name in names)
        assert self.named.exists() == bool(entries)
        values = list(self.many.get())
        assert self.many.exists() == bool(values)
        timers = sorted(self._handle.listTimers()) if self._timers else []
        return {
            "one": self.single.get() if self.single.exists() else "nothing",
            "many": values,
            "named": sorted(map(repr, entries)),
            "timers": timers if self._timers == "event" else len(timers),
        }

    def _rows(self, rows: Any) -> Iterator[Any]:
        return (row for frame in rows for row in frame.itertuples()) if self._pandas else rows

    def _output(self, key: Any, event: str, content: Any, times: Any) -> Any:
        row = {"k": repr(key), "event": event, "content": repr(content)}
        if not self._pandas:
            return Row(**row)
        from pandas import DataFrame

        return DataFrame([row])


class TimedInterpreter(Interpreter):
    """Outputs an event time `at` too, which is not late."""

    def _output(self, key: Any, event: str, content: Any, times: Any) -> Any:
        at = datetime.fromtimestamp(times.getCurrentWatermarkInMs() / 1000 + 1, UTC)
        return Row(**super()._output(key, event, content, times).asDict(), at=at)


class Rebuilt(StatefulProcessor):
    """Keeps the values of its rows in its current variables.

    Parameters
    ----------
    has
        Names of its variables: of "total", "seen" and "named".
    gone
        Names of its former variables.
    """

    def __init__(self, has: set[str], gone: set[str]) -> None:
        self._has = has
        self._gone = gone

    def init(self, handle: Any) -> None:
        for name in sorted(self._gone):
            handle.deleteIfExists(name)
        self.total = handle.getValueState("total", "n bigint") if "total" in self._has else None
        self.seen_values = handle.getListState("seen", "v string", DAY) if "seen" in self._has else None
        self.named = handle.getMapState("named", "v string", "n bigint") if "named" in self._has else None

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for row in sorted(rows, key=lambda row: row.seq):
            if self.total is not None:
                self.total.update(((self.total.get() or (0,))[0] + row.n,))
            if self.seen_values is not None:
                self.seen_values.appendValue((row.v,))
            if self.named is not None:
                self.named.updateValue((row.v,), (row.n,))
        content = {
            "total": self.total and self.total.get(),
            "seen": self.seen_values and list(self.seen_values.get()),
            "named": self.named and sorted(map(repr, self.named.iterator())),
        }
        yield Row(k=repr(key), event="rows", content=repr(content))
