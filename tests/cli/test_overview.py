"""``ls`` and ``show`` say what a checkpoint consists of."""

from __future__ import annotations

import json

from spark_statestore.cli.overview import _short
from tests.checkpoint.query.stored import StoredQuery
from tests.cli.running import node, said


def test_ls_has_a_line_for_each_store(query: StoredQuery) -> None:
    found = node("ls", query.url)
    assert (found["batch"], found["oldest_batch"], found["newest_batch"], found["format"]) == (2, 0, 2, 2)
    (store,) = found["stores"]
    assert store["rows"] == len(query.state()) == 102
    assert (store["operator"], store["name"], store["store"]) == (0, "stateStoreSave", "default")
    assert (store["partitions"], store["chain"], store["versions"]) == (2, 3, 3)
    state = {path: data for path, data in query.files().items() if "/chk-" in path or "/shared/" in path}
    assert store["stored_files"] == len(state)
    assert store["stored_bytes"] == sum(map(len, state.values()))
    handles = [attempt.committed.handle.state_size for attempt in query.counted[-1]]
    assert (store["bytes"], store["largest_bytes"]) == (sum(handles), max(handles))


def test_ls_has_a_line_for_each_partition_if_asked(query: StoredQuery) -> None:
    stores = node("ls", query.url, "--by-partition", "--batch", 0)["stores"]
    assert [(store["partition"], store["rows"], store["chain"]) for store in stores] == [
        (partition, len(query.of(partition, query.left[0])), 1) for partition in (0, 1)
    ]


def test_ls_prints_a_table(query: StoredQuery) -> None:
    text = said("ls", query.url)
    assert "batch 2 of 0 to 2, checkpoint format v2" in text
    (line,) = [line for line in text.splitlines() if "stateStoreSave" in line]
    assert "102" in line
    assert "KiB" in line


def test_show_has_the_batch(query: StoredQuery) -> None:
    found = node("show", query.url, "--batch", 1)
    assert found["sources"] == ['{"logOffset": 1}']
    assert found["timestamp_ms"] == 1_700_000_000_001
    assert found["conf"] == {"spark.sql.shuffle.partitions": "2"}
    assert [operator["stores"] for operator in found["operators"]] == [["default"]]
    assert "spark.sql.shuffle.partitions" in said("show", query.url)


def test_show_has_a_store(query: StoredQuery) -> None:
    found = node("show", query.url, "--operator", 0, "--partition", 0)
    attempt = query.counted[-1][0]
    assert (found["version"], found["attempt"]) == (3, attempt.id)
    assert found["parent_attempt"] == query.counted[-2][0].id
    assert [(entry["version"], entry["full"]) for entry in found["chain"]] == [
        (1, True),
        (2, False),
        (3, False),
    ]
    assert [entry["inline"] for entry in found["chain"]] == [False, True, True]
    assert found["states"][0]["rows"] == len(query.of(0, query.state()))
    text = said("show", query.url, "--operator", 0, "--partition", 0)
    assert "word string" in text
    assert "full snapshot" in text


def test_what_is_not_there_is_an_error(query: StoredQuery) -> None:
    assert "no batch 7" in said("ls", query.url, "--batch", 7, code=1)
    assert "no store 'left'" in said("show", query.url, "--operator", 0, "--store", "left", code=1)
    error = node("show", query.url, "--operator", 4, code=1)["error"]
    assert error["type"] == "CheckpointNotFoundError"
    assert "no stateful operator 4" in error["message"]
    assert "no checkpoint location" in said("ls", f"{query.url}/state", code=1)


def test_a_url_that_cannot_be_one_is_wrong_usage() -> None:
    assert node("ls", "http://example.com/checkpoint", code=2)["error"]["type"] == "StorageURLError"


def test_types_are_written_as_people_write_them() -> None:
    fields = [
        {"name": "window", "type": {"type": "struct", "fields": [{"name": "start", "type": "timestamp"}]}},
        {"name": "tags", "type": {"type": "array", "elementType": "string"}},
        {"name": "counts", "type": {"type": "map", "keyType": "string", "valueType": "long"}},
        {"name": "point", "type": {"type": "udt"}},
    ]
    assert _short(json.dumps({"type": "struct", "fields": fields})) == (
        "window struct<start timestamp>, tags array<string>, counts map<string, long>, point udt"
    )
