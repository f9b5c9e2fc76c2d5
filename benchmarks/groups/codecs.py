"""Cost and savings of each compression codec: commits, and cold loads."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from benchmarks import contest, session
from benchmarks.apart import StoreApart, stores_apart
from benchmarks.contest import OURS
from benchmarks.groups.commits import change_and_commit
from benchmarks.report import figures, median, table
from benchmarks.result import Result

CODECS = ("zstd", "none")

ABOUT = """A store of {keys:,} rows (key two longs, value three) for each value of the option compression. Each commits
{changed:,} changed rows {rounds} times, then loads everything into a new instance 7 times, in changing order. Milliseconds;
bytes are those of a commit."""


def run(scratch: Path, quick: bool) -> Result:
    """Measure the same store with each codec."""
    keys, changed, rounds = (20_000, 1_000, 2) if quick else (1_000_000, 10_000, 30)
    taken: dict[str, dict[str, list[float]]] = {codec: {} for codec in CODECS}
    stores: dict[str, StoreApart] = {}
    with stores_apart(scratch) as opener, contest.closing(stores):
        for codec in CODECS:
            path = scratch / codec / "state"
            settings = {"backend__compression": codec, "minDeltasForSnapshot": "1000000"}
            stores[codec] = opener.open("StoreBenchmark", path, OURS, **settings)
            stores[codec].fill(keys, keys, True)
            contest.warm_up(
                stores[codec], 0.1 if quick else 3, partial(change_and_commit, stores[codec], changed)
            )
            session.log(codec)
        for _, seed, order in contest.turns(CODECS, rounds):
            for codec in order:
                store = stores[codec]
                store.change(changed, seed)
                record(taken[codec], "commit", store.commit() / 1e6)
                metrics = json.loads(store.metrics())
                record(taken[codec], "encode", metrics["checkpointCommitEncodeTimeUs"] / 1e3)
                record(taken[codec], "bytes", metrics["checkpointBytesWritten"])
        for store in stores.values():
            # One snapshot of everything.
            store.fill(1, 1, True)
        for number, _, order in contest.turns(CODECS, 9):
            for codec in order:
                millis = stores[codec].coldLoad() / 1e6
                if number > 1:
                    record(taken[codec], "load", millis)
    rows = []
    for codec, of in taken.items():
        commits = figures(median(of["commit"]), median(of["encode"]))
        loads = figures(median(of["load"]), min(of["load"]))
        rows.append([codec, *commits, f"{median(of['bytes']):,.0f}", *loads])
    header = ["compression", "commit", "of that encoding", "bytes", "cold load", "min"]
    about = ABOUT.format(keys=keys, changed=changed, rounds=rounds)
    return Result("codecs", f"{about}\n\n{table('Ways to compress', header, rows)}", [], {"codecs": taken})


def record(of: dict[str, list[float]], what: str, value: float) -> None:
    """Record a measurement."""
    of.setdefault(what, []).append(value)
