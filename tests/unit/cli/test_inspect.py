"""Tests of ``ls`` and ``show``."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from spark_statestore.cli.inspect import _short
from tests.unit.cli.commands import node, output_of
from tests.unit.query.stored_query import StoredQuery


def test_ls_has_a_line_for_each_store(query: StoredQuery) -> None:
    report = node("ls", query.url)
    assert (report["batch"], report["oldest_batch"], report["newest_batch"], report["format"]) == (2, 0, 2, 2)
    (store,) = report["stores"]
    assert store["rows"] == len(query.state()) == 102
    assert (store["operator"], store["name"], store["store"]) == (0, "stateStoreSave", "default")
    assert (store["partitions"], store["chain_length"], store["versions"]) == (2, 3, 3)
    state = {path: data for path, data in query.files().items() if "/chk-" in path or "/shared/" in path}
    assert store["stored_files"] == len(state)
    assert store["stored_bytes"] == sum(map(len, state.values()))
    handles = [attempt_id.committed.handle.state_size for attempt_id in query.counted[-1]]
    assert (store["bytes"], store["largest_bytes"]) == (sum(handles), max(handles))
    text = output_of("ls", query.url)
    assert "batch 2 of 0 to 2, checkpoint format v2" in text
    (line,) = [line for line in text.splitlines() if "stateStoreSave" in line]
    assert "102" in line
    assert "KiB" in line


def test_ls_by_partition_has_a_line_for_each_partition(query: StoredQuery) -> None:
    stores = node("ls", query.url, "--by-partition", "--batch", 0)["stores"]
    assert [(store["partition"], store["rows"], store["chain_length"]) for store in stores] == [
        (partition, len(query.partition_rows(partition, query.states[0])), 1) for partition in (0, 1)
    ]
    assert {store["host"] for store in stores} == {socket.gethostname()}


def test_show_prints_the_batch(query: StoredQuery) -> None:
    report = node("show", query.url, "--batch", 1)
    assert report["sources"] == ['{"logOffset": 1}']
    assert report["timestamp_ms"] == 1_700_000_000_001
    assert report["conf"] == {"spark.sql.shuffle.partitions": "2"}
    assert [operator["stores"] for operator in report["operators"]] == [["default"]]
    assert "spark.sql.shuffle.partitions" in output_of("show", query.url)


def test_show_prints_a_store(query: StoredQuery) -> None:
    report = node("show", query.url, "--operator", 0, "--partition", 0)
    attempt_id = query.counted[-1][0]
    assert (report["version"], report["attempt_id"]) == (3, attempt_id.id)
    assert report["parent_attempt_id"] == query.counted[-2][0].id
    chain = [(entry["version"], entry["full"], entry["inline"]) for entry in report["chain"]]
    assert chain == [(1, True, False), (2, False, True), (3, False, True)]
    assert report["column_families"][0]["rows"] == len(query.partition_rows(0, query.state()))
    text = output_of("show", query.url, "--operator", 0, "--partition", 0)
    assert "word string" in text
    assert "full snapshot" in text


def test_ls_lists_the_stores_beside_a_damaged_one(query: StoredQuery) -> None:
    (path,) = query.directory.glob("state/0/1/chk-3_*/_metadata")
    path.write_bytes(b"broken")
    report = node("ls", query.url, "--by-partition", code=1)
    whole, damaged = report["stores"]
    assert (whole["partition"], whole["damaged"]) == (0, 0)
    assert whole["rows"] == len(query.partition_rows(0, query.state()))
    assert (damaged["partition"], damaged["damaged"], damaged["rows"], damaged["bytes"]) == (1, 1, None, None)
    (problem,) = report["problems"]
    assert (problem["operator"], problem["partition"], problem["store"]) == (0, 1, "default")
    (store,) = node("ls", query.url, code=1)["stores"]
    assert (store["partitions"], store["damaged"], store["rows"]) == (2, 1, whole["rows"])
    text = output_of("ls", query.url, code=1)
    assert "stateStoreSave" in text
    assert f"damaged: operator 0, partition 1, store default\n    {problem['message']}" in text
    whole_again = node("ls", query.url, "--batch", 1)
    assert (whole_again["problems"], whole_again["stores"][0]["damaged"]) == ([], 0)
    assert "damaged" not in output_of("ls", query.url, "--batch", 1)


def test_show_partition_needs_an_operator_only_if_there_are_several(query: StoredQuery) -> None:
    named = node("show", query.url, "--operator", 0, "--partition", 1)
    assert node("show", query.url, "--partition", 1) == named
    assert node("show", query.url, "--store", "default")["partition"] == 0
    output_of("show", query.url, "--partition", 2, code=1)
    metadata = (query.directory / "state/0/_metadata/metadata").read_text()
    query.put("state/1/_metadata/metadata", metadata.replace('"operatorId": 0', '"operatorId": 1'))
    message = output_of("show", query.url, "--partition", 1, code=2)
    assert "0 (stateStoreSave), 1 (stateStoreSave) with --operator" in message
    assert node("show", query.url, "--operator", 0, "--partition", 1)["partition"] == 1


def test_ls_refuses_a_query_without_a_committed_batch(tmp_path: Path) -> None:
    query = StoredQuery(tmp_path / "begun")
    query.begin()
    message = output_of("ls", query.url, code=1)
    assert "no batch is committed yet. Let the query commit its first batch" in message
    assert "one of those" not in message


def test_unknown_names_are_errors(query: StoredQuery) -> None:
    assert "no batch 7" in output_of("ls", query.url, "--batch", 7, code=1)
    assert "no store 'left'" in output_of("show", query.url, "--operator", 0, "--store", "left", code=1)
    error = node("show", query.url, "--operator", 4, code=1)["error"]
    assert error["type"] == "CheckpointNotFoundError"
    assert "no stateful operator 4" in error["message"]
    assert "not a checkpoint location" in output_of("ls", f"{query.url}/state", code=1)
    assert node("ls", "http://example.com/checkpoint", code=2)["error"]["type"] == "StorageURLError"


def test_types_have_readable_names() -> None:
    fields = [
        {"name": "window", "type": {"type": "struct", "fields": [{"name": "start", "type": "timestamp"}]}},
        {"name": "tags", "type": {"type": "array", "elementType": "string"}},
        {"name": "counts", "type": {"type": "map", "keyType": "string", "valueType": "long"}},
        {"name": "point", "type": {"type": "udt"}},
    ]
    assert _short(json.dumps({"type": "struct", "fields": fields})) == (
        "window struct<start timestamp>, tags array<string>, counts map<string, long>, point udt"
    )
