"""Tests of a file source's log, cut to a batch."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_statestore.errors import CorruptCheckpointError
from spark_statestore.query import OffsetEntry, sources

Log = dict[str, bytes]


def entry(number: int) -> str:
    return json.dumps({"path": f"file:///in/{number}", "timestamp": number, "batchId": number})


def source_log(count: int, interval: int) -> Log:
    """The log of a source that found one file after another, none of it removed."""
    log = {}
    for number in range(count):
        compacts = (number + 1) % interval == 0
        entries = range(number + 1) if compacts else [number]
        log[f"{number}.compact" if compacts else str(number)] = "\n".join(
            ["v1", *map(entry, entries)]
        ).encode()
    return log


def known_to_spark(log: Log, default_interval: int) -> list[int]:
    """Return the entries that Spark's reader finds.

    It works out the distance of compacted files by their names.
    """
    if not log:
        return []
    compacted = sorted((int(name.split(".")[0]) for name in log if name.endswith(".compact")), reverse=True)
    interval = default_interval
    if len(compacted) > 1:
        interval = compacted[0] - compacted[1]
    elif compacted:
        newest = compacted[0] + 1
        least = min(default_interval, newest)
        divisors = (n for n in range(least, newest // 2 + 1) if newest % n == 0)
        interval = next(divisors, newest) if default_interval < newest // 2 else newest
    latest = max(int(name.split(".")[0]) for name in log)
    numbers = []
    for number in range(max(0, (latest + 1) // interval * interval - 1), latest + 1):
        data = log[f"{number}.compact" if (number + 1) % interval == 0 else str(number)]
        numbers += [json.loads(line)["batchId"] for line in data.decode().split("\n")[1:]]
    return numbers


def carried_out(log: Log, part: sources.FileLogCut, last: int) -> Log:
    cut = {name: log[name] for name in part.unchanged_files}
    if part.compact is not None:
        name, origin = part.compact
        cut[name] = sources.compacted(log[origin], last, "here")
    return cut


@st.composite
def logs(draw: st.DrawFn) -> tuple[Log, int, int]:
    """A log of which old files may have been removed behind a compacted one, its interval, and an entry."""
    interval = draw(st.integers(1, 12))
    count = draw(st.integers(1, 60))
    log = source_log(count, interval)
    compacted = [int(name.split(".")[0]) for name in log if name.endswith(".compact")]
    if compacted:
        oldest = draw(st.sampled_from([0, *compacted]))
        gone = [name for name in log if int(name.split(".")[0]) < oldest]
        for name in draw(st.permutations(gone))[: draw(st.integers(0, len(gone)))]:
            del log[name]
    return log, interval, draw(st.integers(-1, count - 1))


# One compacted file was removed, and older ones were not.
@example(({name: data for name, data in source_log(20, 6).items() if name != "11.compact"}, 6, 19))
@given(logs())
def test_cut_keeps_a_log_that_spark_reads_up_to_the_entry(drawn: tuple[Log, int, int]):
    log, interval, last = drawn
    part = sources.cut(log, last, "here")
    cut = carried_out(log, part, last)
    assert known_to_spark(cut, interval) == list(range(last + 1))
    assert set(part.dropped) == set(log) - set(part.unchanged_files)
    # The newest files go first.
    numbers = list(map(sources.newest_entry, part.dropped))
    assert {number for number in map(sources.newest_entry, log) if number > last} <= set(numbers)
    assert numbers == sorted(numbers, reverse=True)


def test_cut_refuses_a_log_with_missing_or_unreadable_entries():
    log = source_log(8, 10)
    del log["3"]
    with pytest.raises(CorruptCheckpointError, match="lacks entries up to 5"):
        sources.cut(log, 5, "here")
    with pytest.raises(CorruptCheckpointError, match="is not a log of a file source"):
        sources.compacted(b"v1\n{}", 3, "here")


@pytest.mark.parametrize(
    ("offset", "position"),
    [('{"logOffset":7}', 7), ("-", -1), ("7", 7), ('{"topic":{"0":7}}', None), ("true", None), ("x y", None)],
)
def test_position_is_read_only_from_offsets_of_file_sources(offset: str, position: int | None):
    assert sources.position(offset) == position


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (source_log(1, 10)["0"], True),
        (b"v1", True),
        (b'v1\n{"topic":{"0":7}}', False),
        (b"v1\n1700000000000", False),
        (b"\x00", False),
        (b"", False),
    ],
)
def test_is_file_log_distinguishes_logs_of_other_sources(data: bytes, expected: bool):
    assert sources.is_file_log(data) is expected


def test_directories_finds_offsets_by_number_or_name():
    numbered = OffsetEntry("v1", {}, ("-", '{"logOffset":7}'))
    named = OffsetEntry("v2", {}, ('clicks:{"logOffset":7}', "orders:-"))
    assert sources.directories(numbered, {"0", "1"}.__contains__) == {"0": "-", "1": '{"logOffset":7}'}
    assert sources.directories(named, set().__contains__) == {"clicks": '{"logOffset":7}', "orders": "-"}


def files(*positions: int | None) -> tuple[str, ...]:
    """Offsets of file sources, or of one that has no directory."""
    return tuple('{"offset":3}' if at is None else f'{{"logOffset":{at}}}' for at in positions)


@pytest.mark.parametrize(
    ("offsets", "there", "positions"),
    [
        # Each offset has a directory of its own, though some are the same.
        (files(5, 5, 7), "012", files(5, 5, 7)),
        # A join of a source with itself, and what follows it or comes before.
        (files(5, 5), "0", files(5)),
        (files(5, 5, 7), "01", files(5, 7)),
        (files(5, 7, 7), "01", files(5, 7)),
        (files(7, 7, 7), "01", files(7, 7)),
        (files(5, 7, 5, 7), "01", files(5, 7)),
        # The same of sources without directories.
        (files(None, None, 5), "1", files(None, 5)),
        (files(None, None, 5), "2", files(None, None, 5)),
        # One is missing: nothing else is taken for it.
        (files(5, 7), "0", files(5, 7)),
        (files(5, 7, 5), "02", files(5, 7, 5)),
    ],
)
def test_directories_of_a_source_read_several_times_is_one(
    offsets: tuple[str, ...], there: str, positions: tuple[str, ...]
):
    entry = OffsetEntry("v1", {}, offsets)
    expected = {str(number): offset for number, offset in enumerate(positions)}
    assert sources.directories(entry, set(there).__contains__) == expected


def test_directories_refuses_ambiguous_offsets():
    entry = OffsetEntry("v1", {}, files(5, 5, 7, 7))
    with pytest.raises(CorruptCheckpointError, match="the 4 offsets of a batch cannot be assigned"):
        sources.directories(entry, set("012").__contains__)
