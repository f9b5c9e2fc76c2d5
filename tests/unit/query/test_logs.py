"""Tests of entries of Spark's offset and commit logs, as Spark 4.3 writes them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_statestore.errors import CorruptCheckpointError
from spark_statestore.query import CommitEntry, OffsetEntry
from spark_statestore.query.logs import SHUFFLE_PARTITIONS

OFFSETS = (
    b'v1\n{"batchWatermarkMs":1704088740000,"batchTimestampMs":1795270345807,"conf":{"spark.sql.streaming.'
    b'multipleWatermarkPolicy":"min","spark.sql.shuffle.partitions":"2"}}\n{"logOffset":5}\n-'
)
COMMIT_V1 = b'v1\n{"nextBatchWatermarkMs":0}'
COMMIT_V2 = (
    b'v2\n{"nextBatchWatermarkMs":7,"stateUniqueIds":{"0":[["15a92aa6444b9e85","52d34957bc6dd887"],'
    b'["6cee82a46999329c","fc9692a7743ec9f4"]]}}'
)

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
_metadata = st.dictionaries(st.text(), _json, max_size=3)
# A source writes one line.
_lines = st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])), max_size=3).map(
    tuple
)
_versions = st.integers(1, 99).map(lambda number: f"v{number}")


def test_offset_entry_has_the_input_and_settings_of_a_batch() -> None:
    entry = OffsetEntry.decode(OFFSETS, "here")
    assert (entry.version, entry.watermark_ms, entry.shuffle_partitions) == ("v1", 1704088740000, 2)
    assert entry.sources == ('{"logOffset":5}', "-")
    assert entry.encode() == OFFSETS
    changed = entry.with_conf(SHUFFLE_PARTITIONS, "7")
    assert changed.encode() == OFFSETS.replace(b'"2"', b'"7"')
    assert (changed.shuffle_partitions, entry.shuffle_partitions) == (7, 2)


def test_offset_entry_of_an_old_query_may_lack_settings() -> None:
    entry = OffsetEntry.decode(b"v1\n{}\n0", "here")
    assert (dict(entry.conf), entry.shuffle_partitions, entry.watermark_ms) == ({}, None, 0)
    assert entry.with_conf("a", "b").conf == {"a": "b"}


def test_commit_entry_has_the_attempts_in_format_v2() -> None:
    v1, v2 = (CommitEntry.decode(data, "here") for data in (COMMIT_V1, COMMIT_V2))
    assert (v1.version, v1.state_ids) == ("v1", None)
    assert v2.state_ids == {
        0: [["15a92aa6444b9e85", "52d34957bc6dd887"], ["6cee82a46999329c", "fc9692a7743ec9f4"]]
    }
    assert [v1.encode(), v2.encode()] == [COMMIT_V1, COMMIT_V2]
    # A query that has no state yet.
    assert CommitEntry.decode(b'v2\n{"stateUniqueIds":{}}', "here").state_ids is None


def test_commit_entry_with_state_ids_changes_only_the_attempts() -> None:
    entry = CommitEntry.decode(COMMIT_V2, "here").with_state_ids({0: [["a"]], 1: [["b"], ["c"]]})
    metadata = json.loads(entry.encode().split(b"\n")[1])
    assert metadata == {"nextBatchWatermarkMs": 7, "stateUniqueIds": {"0": [["a"]], "1": [["b"], ["c"]]}}
    assert CommitEntry.decode(entry.encode(), "here").state_ids == {0: [["a"]], 1: [["b"], ["c"]]}


@given(_versions, _metadata, _lines)
def test_entries_round_trip(version: str, metadata: dict[str, object], sources: tuple[str, ...]) -> None:
    offsets = OffsetEntry(version, metadata, sources)
    assert OffsetEntry.decode(offsets.encode(), "here") == offsets
    commit = CommitEntry(version, metadata)
    assert CommitEntry.decode(commit.encode(), "here") == commit


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"v1", "not enough values"),
        (b"v1\n", "Expecting value"),
        (b"v1\n[]", "not a JSON object"),
        (b"v0\n{}", "the first line is 'v0'"),
        (b"v1\n\xff", "invalid start byte"),
    ],
)
def test_entry_decode_refuses_other_bytes_with_the_path(data: bytes, problem: str) -> None:
    for entry in (OffsetEntry, CommitEntry):
        with pytest.raises(CorruptCheckpointError, match=f"offsets/7 is not an entry .*{problem}"):
            entry.decode(data, "offsets/7")
