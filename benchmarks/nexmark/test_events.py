"""Stream of events: independent of its partition into parts, in Nexmark's proportions, late, out of order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.events import AUCTION, BID, PERSON, SCHEMA, Generator

MANY = 20_000


def of_kind(table: pa.Table, kind: int, name: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = table.filter(pc.equal(table["kind"], kind))[name].to_pylist()
    return events


def times(table: pa.Table) -> list[int]:
    micros: list[int] = table["time"].cast(pa.int64()).to_pylist()
    return micros


def test_events_do_not_depend_on_batch_boundaries() -> None:
    generator = Generator()
    whole = generator.table(1_000_003, 500)
    parts = [generator.table(1_000_003, 123), generator.table(1_000_126, 377)]
    assert pa.concat_tables(parts).combine_chunks() == whole.combine_chunks()


def test_events_depend_on_the_seed() -> None:
    assert Generator(1).table(0, 100) != Generator(2).table(0, 100)


def test_events_have_the_proportions_of_nexmark() -> None:
    table = Generator().table(1_000_000, MANY)
    kinds = Counter(table["kind"].to_pylist())
    assert (kinds[PERSON], kinds[AUCTION], kinds[BID]) == (MANY // 50, 3 * MANY // 50, 46 * MANY // 50)
    for name, kind in ("person", PERSON), ("auction", AUCTION), ("bid", BID):
        assert table[name].is_valid().to_pylist() == [k == kind for k in table["kind"].to_pylist()]
    assert table.schema == SCHEMA


def test_events_have_new_ids_and_bids_on_recent_auctions() -> None:
    table = Generator(open_auctions=1_000, active_persons=500).table(1_000_000, MANY)
    auctions = [auction["id"] for auction in of_kind(table, AUCTION, "auction")]
    assert auctions == list(range(auctions[0], auctions[0] + len(auctions)))
    persons = [person["id"] for person in of_kind(table, PERSON, "person")]
    assert persons == list(range(persons[0], persons[0] + len(persons)))
    bids = of_kind(table, BID, "bid")
    # A repeated bid is up to ten seconds old, and the numbers of the hottest are rounded down.
    assert min(b["auction"] for b in bids) >= auctions[0] - 1_000 - 10 * 60 - 100
    assert max(b["auction"] for b in bids) <= auctions[-1]
    assert min(b["bidder"] for b in bids) >= persons[0] - 500 - 10 * 20 - 100


def test_newest_auction_is_the_last_event_of_its_kind() -> None:
    generator = Generator(open_auctions=1, active_persons=1, repeated=1 << 40)
    auction = person = 0
    for event in generator.table(1_000_000, 1_000).to_pylist():
        if event["kind"] == AUCTION:
            auction = event["auction"]["id"]
        elif event["kind"] == PERSON:
            person = event["person"]["id"]
        else:
            assert event["bid"]["auction"] in (auction, auction // 100 * 100)
            assert event["bid"]["bidder"] in (person, person // 100 * 100)


def test_half_of_the_bids_are_on_hot_auctions() -> None:
    bids = of_kind(Generator().table(1_000_000, MANY), BID, "bid")
    hot = sum(bid["auction"] % 100 == 0 for bid in bids)
    assert 0.48 < hot / len(bids) < 0.53


def test_events_are_out_of_order_and_some_late() -> None:
    generator = Generator(late=100, lateness=30.0, repeated=1 << 40)
    came = times(generator.table(1_000_000, MANY))
    assert came != sorted(came)
    newest = 0
    behind = []
    for time in came:
        newest = max(newest, time)
        behind.append((newest - time) / 1_000_000)
    assert max(behind) < 8 + 30 + 0.1
    assert 0.005 < sum(b > 10 for b in behind) / MANY < 0.02


def test_some_bids_are_duplicates() -> None:
    table = Generator(repeated=10).table(1_000_000, MANY)
    bids = Counter(map(repr, zip(times(table), table["bid"].to_pylist(), strict=True)))
    again = sum(count - 1 for bid, count in bids.items() if "None" not in bid)
    # The first ones repeat bids from before the start.
    assert 0.03 * MANY < again < 0.1 * MANY
