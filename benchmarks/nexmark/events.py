"""Persons, auctions and bids in Nexmark's usual proportions: 1 to 3 to 46.

The content of an event depends on the seed and its number alone, so any part of the stream can be made
without what comes before it, and is the same each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa

PERSON, AUCTION, BID = 0, 1, 2
PERSONS, AUCTIONS, BIDS = 1, 3, 46
CYCLE = PERSONS + AUCTIONS + BIDS

START = datetime(2024, 1, 1, tzinfo=UTC)
FIRST_ID = 1000

FIRST_EVENT = 1_000_000
"""Number of the first event of a run: persons and auctions already exist."""

_TIME = pa.timestamp("us", tz="UTC")
_PERSON = {"id": pa.int64(), "name": pa.string(), "city": pa.string(), "state": pa.string()}
_AUCTION = {"id": pa.int64(), "item": pa.string(), "initial": pa.int64(), "reserve": pa.int64()}
_AUCTION |= {"expires": _TIME, "seller": pa.int64(), "category": pa.int64()}
_BID = {"auction": pa.int64(), "bidder": pa.int64(), "price": pa.int64(), "channel": pa.string()}
_STRUCTS = {"person": _PERSON, "auction": _AUCTION, "bid": _BID}

SCHEMA = pa.schema(
    [("kind", pa.int32()), ("time", _TIME)]
    + [(name, pa.struct(list(fields.items()))) for name, fields in _STRUCTS.items()]
)
"""One table for all three kinds; an event has only the struct of its kind."""

_NAMES = ("Ada", "Bo", "Chen", "Dara", "Eno", "Finn", "Gita", "Hana", "Ivo", "Juno", "Kai", "Lior")
_CITIES = ("Bend", "Boise", "Kent", "Napa", "Page", "Provo", "Reno", "Yuma")
_STATES = ("AZ", "CA", "ID", "NV", "OR", "UT", "WA", "WY")
_CHANNELS = ("app", "mail", "phone", "shop", "web")

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Generator:
    """The stream; different seeds give different ones."""

    seed: int = 1
    rate: int = 1_000
    """Events in a second of event time."""
    delay: float = 1.0
    """Average delay of events in seconds; most are much smaller, few larger."""
    late: int = 2_000
    """One in this many events is a further `lateness` seconds late."""
    lateness: float = 30.0
    repeated: int = 50
    """One in this many bids repeats an earlier one."""
    open_auctions: int = 20_000
    """Number of the newest auctions that get bids."""
    active_persons: int = 20_000
    """Number of the newest persons that bid."""

    def table(self, first: int, count: int) -> pa.Table:
        """Return the events that arrive from number `first` on."""
        n = self._sent_again(np.arange(first, first + count, dtype=np.int64))
        place = n % CYCLE
        kind = np.where(place < PERSONS, PERSON, np.where(place < PERSONS + AUCTIONS, AUCTION, BID))
        columns = [
            pa.array(kind.astype(np.int32)),
            self._times(n),
            _only(kind == PERSON, self._persons(n), SCHEMA.field("person").type),
            _only(kind == AUCTION, self._auctions(n), SCHEMA.field("auction").type),
            _only(kind == BID, self._bids(n), SCHEMA.field("bid").type),
        ]
        return pa.table(columns, schema=SCHEMA)

    def _sent_again(self, n: Numbers) -> Numbers:
        again = (n % CYCLE >= PERSONS + AUCTIONS) & (self._random(n, 1) % self.repeated == 0)
        # In whole cycles, so that it is a bid too; up to ten seconds back.
        back = CYCLE * (1 + self._random(n, 2) % max(1, 10 * self.rate // CYCLE))
        return np.where(again & (back <= n), n - back, n)

    def _times(self, n: Numbers) -> pa.Array:
        uniform = (1 + self._random(n, 3) % 1_000_000) / 1_000_000
        behind = np.minimum(-np.log(uniform) * self.delay, 8 * self.delay)
        behind = behind + np.where(self._random(n, 4) % self.late == 0, self.lateness, 0)
        return _moments(n * 1_000_000 // self.rate - (behind * 1_000_000).astype(np.int64))

    def _persons(self, n: Numbers) -> list[pa.Array]:
        return [
            pa.array(_newest_person(n)),
            _chosen(_NAMES, self._random(n, 10)),
            _chosen(_CITIES, self._random(n, 11)),
            _chosen(_STATES, self._random(n, 12)),
        ]

    def _auctions(self, n: Numbers) -> list[pa.Array]:
        initial = self._price(n, 20)
        return [
            pa.array(_newest_auction(n)),
            pa.array(np.char.add("item ", (self._random(n, 21) % 100_000).astype(str))),
            pa.array(initial),
            pa.array(initial + self._price(n, 22)),
            _moments(n * 1_000_000 // self.rate + 60_000_000 + self._random(n, 23) % 240_000_000),
            pa.array(self._some_person(n, 24)),
            pa.array(10 + self._random(n, 25) % 5),
        ]

    def _bids(self, n: Numbers) -> list[pa.Array]:
        newest = _newest_auction(n)
        some = np.maximum(FIRST_ID, newest - self._random(n, 30) % self.open_auctions)
        # Half of the bids go to one auction in a hundred.
        hot = self._random(n, 31) % 2 == 0
        return [
            pa.array(np.where(hot, some // 100 * 100, some)),
            pa.array(self._some_person(n, 32)),
            pa.array(self._price(n, 33)),
            _chosen(_CHANNELS, self._random(n, 34)),
        ]

    def _some_person(self, n: Numbers, column: int) -> Numbers:
        # Persons that are active from the start have numbers below the first one that registers.
        some = _newest_person(n) - self._random(n, column) % self.active_persons
        # And one person in a hundred does a quarter of everything.
        hot = self._random(n, column + 100) % 4 == 0
        return np.where(hot, some // 100 * 100, some)

    def _price(self, n: Numbers, column: int) -> Numbers:
        # From a cent to ten thousand, log-uniformly.
        return np.asarray(10 ** (self._random(n, column) % 1_000_000 / 1_000_000 * 6), dtype=np.int64)

    def _random(self, n: Numbers, column: int) -> Numbers:
        """Return pseudorandom numbers from 0 on, one for each event and column."""
        with np.errstate(over="ignore"):
            x = n.astype(np.uint64) + np.uint64((self.seed * 1_000 + column) << 40)
            for shift, factor in ((32, 0xD6E8FEB86659FD93), (32, 0xD6E8FEB86659FD93)):
                x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
            x ^= x >> np.uint64(32)
        return (x >> np.uint64(1)).astype(np.int64)


def input_table(fill: int, rows: int, batch: int) -> pa.Table:
    """Return the events of a batch: `fill` in the first one, which fills the state, then `rows`."""
    first = FIRST_EVENT if batch == 0 else FIRST_EVENT + fill + (batch - 1) * rows
    return Generator().table(first, rows if batch else fill)


def _newest_person(n: Numbers) -> Numbers:
    return np.asarray(FIRST_ID + n // CYCLE)


def _newest_auction(n: Numbers) -> Numbers:
    """Return of an auction its own number, of another event that of the last auction before it."""
    auctions = np.clip(n % CYCLE - PERSONS + 1, 0, AUCTIONS)
    return np.asarray(FIRST_ID + n // CYCLE * AUCTIONS + auctions - 1)


def _moments(micros: Numbers) -> pa.Array:
    start = int(START.timestamp() * 1_000_000)
    return pa.array(start + micros).cast(_TIME)


def _chosen(choices: tuple[str, ...], random: Numbers) -> pa.Array:
    return pa.array(choices).take(pa.array(random % len(choices)))


def _only(present: Mask, fields: list[pa.Array], struct_type: pa.StructType) -> pa.Array:
    return pa.StructArray.from_arrays(fields, fields=list(struct_type), mask=pa.array(~present))
