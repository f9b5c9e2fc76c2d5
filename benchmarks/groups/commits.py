"""Commits alone: time, bytes and objects, by the number of rows that the batch changed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks import stores
from benchmarks.report import Criterion, Result, figures, median, percentile, table
from benchmarks.sessions import Remote, log
from benchmarks.stores import OURS, PROVIDERS, better

MOST_OF_BUILT_IN = 1 / 8

ABOUT = """A batch puts a number of distinct keys out of {keys:,} existing ones, and commits. {batches}
batches of each store in changing order, after each ran such batches by itself for {warmup:g} seconds; each
store has a JVM of its own. The times, in milliseconds, are those of commit() alone, and of getStore and all
puts before it. HDFSBacked, and RocksDB with changelog, compress and write each row while it is put, which is
not in the time of their commit; so both times together are judged too. Bytes and objects are those of the
files that a commit added, without the checksum files that Hadoop's local file system keeps beside them. No
file is synced. {unforked}"""


@dataclass(frozen=True)
class Plan:
    """Amount of work; `warmup` in seconds."""

    keys: int = 1_000_000
    changed: tuple[int, ...] = (1_000, 10_000, 100_000)
    warmup: float = 3
    batches: int = 15


FULL = Plan()
QUICK = Plan(keys=20_000, changed=(100, 1_000), warmup=0.1, batches=2)


@dataclass
class Sample:
    """Batches of one store: milliseconds of puts and commits, and what each commit wrote."""

    puts: list[float] = field(default_factory=list)
    commit: list[float] = field(default_factory=list)
    bytes_written: list[float] = field(default_factory=list)
    objects: list[float] = field(default_factory=list)

    @property
    def both(self) -> float:
        """Return the milliseconds of the puts and the commit after them."""
        return median([puts + commit for puts, commit in zip(self.puts, self.commit, strict=True)])


Samples = dict[tuple[str, int], Sample]
"""Samples by store and number of changed rows."""


def run(scratch: Path, quick: bool) -> Result:
    """Time the commits of all stores."""
    plan = QUICK if quick else FULL
    samples = measure(scratch, plan)
    about = ABOUT.format(
        keys=plan.keys, batches=plan.batches, warmup=plan.warmup, unforked=stores.ABOUT_UNFORKED
    )
    tables = (table_of(samples, changed) for changed in plan.changed)
    return Result("\n\n".join([about, *tables]), judge(samples))


def measure(scratch: Path, plan: Plan) -> Samples:
    """Change and commit in turn."""
    samples: Samples = {}
    with stores.opened_stores(scratch) as opened:
        for name, store in opened.items():
            store.fill(plan.keys)
            log(f"{name}: {plan.keys:,} keys")
        for changed in plan.changed:
            log(f"{plan.batches} commits of {changed:,} rows each")
            for store in opened.values():
                stores.warm_up(plan.warmup, partial(_warm_up, store, changed))
                store.maintenance()
            for number, seed, order in stores.turns(opened, plan.batches):
                for name in order:
                    directory = stores.directory_of(scratch, name)
                    before = files(directory)
                    sample = samples.setdefault((name, changed), Sample())
                    _batch(opened[name], changed, seed, sample)
                    added = [size for path, size in files(directory).items() if path not in before]
                    opened[name].settle()
                    sample.bytes_written.append(sum(added))
                    sample.objects.append(len(added))
                if number % 5 == 4:
                    for name in order:
                        opened[name].maintenance()
    return samples


def _batch(store: Remote, changed: int, seed: int, sample: Sample) -> None:
    sample.puts.append(store.change(changed, seed) / 1e6)
    sample.commit.append(store.commit() / 1e6)


def _warm_up(store: Remote, changed: int, seed: int) -> None:
    _batch(store, changed, seed, Sample())
    store.settle()


def files(directory: Path) -> dict[str, int]:
    """Return files with their sizes, without the hidden ones."""
    sizes = {}
    for path, _, names in os.walk(directory):
        for name in names:
            if not name.startswith("."):
                sizes[os.path.join(path, name)] = os.path.getsize(os.path.join(path, name))
    return sizes


def judge(samples: Samples) -> list[Criterion]:
    """Compare time and bytes with the better built-in in each, and check the number of our objects."""
    criteria = []
    for changed in dict.fromkeys(changed for _, changed in samples):
        by_store = {name: samples[name, changed] for name in PROVIDERS}
        commit = {name: median(sample.commit) for name, sample in by_store.items()}
        both = {name: sample.both for name, sample in by_store.items()}
        bytes_written = {name: median(sample.bytes_written) for name, sample in by_store.items()}
        work = f"commit of {changed:,} rows"
        for name, most, unit, measured in (
            (work, MOST_OF_BUILT_IN, "ms", commit),
            (f"puts and {work}", MOST_OF_BUILT_IN, "ms", both),
            (f"{work}: bytes", 1, "bytes", bytes_written),
        ):
            rival = better(measured, [store for store in PROVIDERS if store != OURS])
            criteria.append(Criterion(name, measured[OURS], most, unit, measured[rival], rival))
        criteria.append(Criterion(f"{work}: objects", median(by_store[OURS].objects), 1))
    return criteria


def table_of(samples: Samples, changed: int) -> str:
    """Return a table of all stores."""
    own_sample = samples[OURS, changed]
    rows = []
    for (name, number), sample in stores.in_order(samples):
        if number == changed:
            ratios = (median(sample.commit) / median(own_sample.commit), sample.both / own_sample.both)
            cells = figures(
                median(sample.puts), median(sample.commit), percentile(sample.commit, 95), *ratios
            )
            rows.append([name, *cells, f"{median(sample.bytes_written):,.0f}", f"{median(sample.objects):g}"])
    header = ["store", "puts", "commit", "p95", "to ours", "with puts", "bytes", "objects"]
    return table(f"Commit of {changed:,} changed rows", header, rows)
