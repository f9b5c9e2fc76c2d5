"""Nexmark's queries, by their numbers, as Structured Streaming can express them, all in append mode.

Where Flink's version of a query updates rows that it has returned, this one returns a row once it is final:
q4 has averages by minute, and q9 the winning bid of an auction that has ended.
"""

from __future__ import annotations

from typing import Any

from benchmarks.nexmark.queries import Build

DELAY = "10 seconds"
"""Events that are later are dropped."""

LONGEST = "interval 300 seconds"
"""No auction is open for longer."""


def _persons(events: Any) -> Any:
    return events.where("kind = 0").select("time", "person.*")


def _auctions(events: Any) -> Any:
    return events.where("kind = 1").select("time", "auction.*")


def _bids(events: Any) -> Any:
    return events.where("kind = 2").select("time", "bid.*").withWatermark("time", DELAY)


def q3(events: Any) -> Any:
    """Local item suggestion: who sells in some states and one category; the state is never dropped."""
    sellers = _persons(events).where("state in ('OR', 'ID', 'CA')").drop("time")
    offers = _auctions(events).where("category = 10").selectExpr("id as auction", "seller")
    return offers.join(sellers, offers.seller == sellers.id).select("name", "city", "state", "auction")


def _winning_bids(events: Any) -> Any:
    from pyspark.sql import functions as F

    # An auction is final when its end has passed.
    offers = (
        _auctions(events)
        .selectExpr("id", "category", "time as begun", "expires")
        .withWatermark("expires", "310 seconds")
    )
    placed = _bids(events).selectExpr("auction", "bidder", "price", "time as placed")
    is_valid = f"auction = id and placed between begun and expires and placed >= expires - {LONGEST}"
    highest = F.max(F.struct("price", "placed", "bidder")).alias("highest")
    valid = offers.join(placed, F.expr(is_valid))
    return valid.groupBy(F.window("expires", "10 seconds"), "id", "category").agg(highest)


def q4(events: Any) -> Any:
    """Average price for a category: of the winning bids of auctions that end in a minute."""
    from pyspark.sql import functions as F

    winning = _winning_bids(events)
    minute = F.window(F.window_time("window"), "1 minute")
    return winning.groupBy(minute, "category").agg(F.avg("highest.price").alias("price"))


def q5(events: Any) -> Any:
    """Hot items: the auction with the most bids in ten seconds, every two seconds."""
    from pyspark.sql import functions as F

    counts = _bids(events).groupBy(F.window("time", "10 seconds", "2 seconds"), "auction").count()
    turn = F.window(F.window_time("window"), "2 seconds")
    return counts.groupBy(turn).agg(F.max(F.struct("count", "auction")).alias("hottest"))


def q7(events: Any) -> Any:
    """Highest bid: the bids with the highest price of ten seconds."""
    from pyspark.sql import functions as F

    bids = _bids(events)
    highest = (
        bids.groupBy(F.window("time", "10 seconds"))
        .agg(F.max("price").alias("most"))
        .select(F.window_time("window").alias("end"), "most")
    )
    is_highest = "price = most and time <= end and time > end - interval 10 seconds"
    return bids.join(highest, F.expr(is_highest)).select("auction", "bidder", "price", "time")


def q8(events: Any) -> Any:
    """Monitor new users: persons who register and open an auction in the same ten seconds."""
    from pyspark.sql import functions as F

    window = F.window("time", "10 seconds")
    persons = _persons(events).withWatermark("time", DELAY).select("id", "name", window.alias("window"))
    sellers = _auctions(events).withWatermark("time", DELAY).select("seller", window.alias("opened"))
    return persons.join(sellers, F.expr("id = seller and window = opened")).select("id", "name", "window")


def q9(events: Any) -> Any:
    """Winning bids: the highest valid bid of each auction that has ended."""
    return _winning_bids(events).selectExpr("window.end as final", "id", "category", "highest")


def q11(events: Any) -> Any:
    """User sessions: the bids of each user until a pause of ten seconds."""
    from pyspark.sql import functions as F

    return _bids(events).groupBy(F.session_window("time", "10 seconds"), "bidder").count()


QUERIES: dict[str, Build] = {"q3": q3, "q4": q4, "q5": q5, "q7": q7, "q8": q8, "q9": q9, "q11": q11}
