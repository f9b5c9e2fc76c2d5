"""Nexmark queries: one for each kind of stateful operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Build = Callable[[Any], Any]


def bids(events: Any) -> Any:
    """Return the bids of a stream of events."""
    return events.where("kind = 2").select("time", "bid.*")


def windowed_count(events: Any) -> Any:
    """Count the bids on each auction in ten minutes."""
    from pyspark.sql import functions as F

    timed = bids(events).withWatermark("time", "10 seconds")
    return timed.groupBy(F.window("time", "10 minutes"), "auction").count()


def session_window(events: Any) -> Any:
    """Count each bidder's bids in a session with gaps below a minute."""
    from pyspark.sql import functions as F

    timed = bids(events).withWatermark("time", "10 seconds")
    return timed.groupBy(F.session_window("time", "1 minute"), "bidder").count()


def deduplication(events: Any) -> Any:
    """Drop repeated bids."""
    timed = bids(events).withWatermark("time", "5 minutes")
    return timed.dropDuplicates(["auction", "bidder", "time"])


def join(events: Any, how: str = "inner") -> Any:
    """Join every bid with its auction, if that began at most five minutes before it."""
    from pyspark.sql import functions as F

    timed = events.withWatermark("time", "10 seconds")
    placed = timed.where("kind = 2").selectExpr("time as placed", "bid.auction", "bid.bidder", "bid.price")
    begun = timed.where("kind = 1").selectExpr(
        "time as begun", "auction.id", "auction.seller", "auction.reserve"
    )
    near = F.expr("auction = id and placed between begun and begun + interval 5 minutes")
    return placed.join(begun, near, how)


def outer_join(events: Any) -> Any:
    """Join likewise, and return bids without such an auction, too."""
    return join(events, "left_outer")


def transform_with_state(events: Any) -> Any:
    """Use Python's transformWithState: number, sum and highest of the bids on each auction."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    # A local function, so that Spark's workers receive it by value and need not import this module.
    class Bids(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._state = handle.getValueState("bids", "n bigint, total bigint, highest bigint")

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            n, total, highest = self._state.get() or (0, 0, 0)
            for row in rows:
                n, total, highest = n + 1, total + row.price, max(highest, row.price)
            self._state.update((n, total, highest))
            yield Row(auction=key[0], n=n, total=total, highest=highest)

        def close(self) -> None:
            pass

    return (
        bids(events)
        .groupBy("auction")
        .transformWithState(
            Bids(),
            "auction bigint, n bigint, total bigint, highest bigint",
            outputMode="Update",
            timeMode="None",
        )
    )
