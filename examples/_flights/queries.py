"""The three queries; the same code gives the stream and the batch answer."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

SCHEMA = (
    "origin string, dest string, carrier string, tailnum string, distance long, "
    "dep_delay long, scheduled timestamp"
)


def departures(flights: DataFrame) -> DataFrame:
    """Aggregate flights, cancellations and delays by airport and carrier, every six hours."""
    return (
        flights.withWatermark("scheduled", "1 day")
        .groupBy(f.window("scheduled", "6 hours"), "origin", "carrier")
        .agg(
            f.count("*").alias("flights"),
            f.count_if(f.col("dep_delay").isNull()).alias("cancelled"),
            f.sum("dep_delay").alias("total_delay"),
            f.avg("dep_delay").alias("mean_delay"),
        )
        .selectExpr("window.start", "window.end", "* except (window)")
    )


def routes(flights: DataFrame) -> DataFrame:
    """Deduplicate the routes of each carrier."""
    return flights.select("origin", "dest", "carrier").dropDuplicates()


def duties(flights: DataFrame) -> DataFrame:
    """Join legs of an aircraft that follow one another within twelve hours."""
    return (
        flights.where("tailnum is not null")
        .withWatermark("scheduled", "1 day")
        .groupBy(f.session_window("scheduled", "12 hours").alias("duty"), "tailnum")
        .agg(f.count("*").alias("legs"), f.sum("distance").alias("distance"))
        .selectExpr("duty.start", "duty.end", "* except (duty)")
    )


# The column that distinguishes the sentinel's rows from the flights'.
QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "departures": (departures, "origin"),
    "routes": (routes, "origin"),
    "duties": (duties, "tailnum"),
}
