"""Tests of a query's checkpoint location: batches, operators, and the stores' versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_statestore.errors import (
    CheckpointIOError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    StorageURLError,
)
from spark_statestore.query import QueryCheckpoint, StatefulOperator
from spark_statestore.store.metadata import StoreId
from spark_statestore.testing.faults import FaultInjectingFileSystem
from spark_statestore.testing.faults_plan import Fault
from tests.support.trees import files_below
from tests.unit.query.test_operators import PROCESSOR
from tests.unit.savepoints.written_query import QUERY_ID, STORES, WrittenQuery, content


@pytest.fixture
def query(tmp_path: Path) -> WrittenQuery:
    query = WrittenQuery(str(tmp_path / "checkpoint"))
    for _ in range(3):
        query.run()
    return query


@pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["", "checkpointsDir"])
def test_stores_returns_a_version_of_every_store(tmp_path: Path, with_ids: bool, elsewhere: bool) -> None:
    directory = str(tmp_path / "states") if elsewhere else None
    query = WrittenQuery(str(tmp_path / "c"), with_ids, directory)
    attempts = []
    for _ in range(3):
        attempts.append(query.begin())
        query.log_commit(attempts[-1], {b"batch": b"%d" % len(attempts)})
    before = files_below(tmp_path)
    checkpoint = QueryCheckpoint(f"file:{tmp_path}/c/", checkpoints_dir=directory)
    assert checkpoint.url == f"file://{tmp_path}/c"
    assert (checkpoint.query_id, checkpoint.batches(), checkpoint.newest_batch()) == (QUERY_ID, [0, 1, 2], 2)
    state = f"{tmp_path}/states/{QUERY_ID.replace('-', '')}" if elsewhere else f"file://{tmp_path}/c/state"
    assert checkpoint.state_url == state
    for batch in range(3):
        versions = checkpoint.stores(batch)
        assert [version.store for version in versions] == STORES
        assert {version.name.version for version in versions} == {batch + 1}
        for version in versions:
            assert version.name.id == (attempts[batch][version.store] if with_ids else None)
            metadata = checkpoint.open(version.store).metadata(version.name)
            assert metadata.attempt_id == attempts[batch][version.store]
    assert checkpoint.stores() == checkpoint.stores(2)
    assert checkpoint.stores(1, operator=1) == [v for v in checkpoint.stores(1) if v.store.operator == 1]
    assert checkpoint.commit(2).version == ("v2" if with_ids else "v1")
    # Looking changes nothing.
    assert files_below(tmp_path) == before


def test_batches_are_those_with_both_log_entries(query: WrittenQuery) -> None:
    query.begin()
    query.write("commits/.9.crc", b"")
    query.write("commits/9.tmp", b"")
    query.write("commits/deep/8", b"")
    for batch in (7, 8, 9, 11):
        query.write(f"commits/{batch}", b"")
        query.write(f"offsets/{batch}", b"")
    checkpoint = query.checkpoint
    assert checkpoint.batches() == [0, 1, 2, 7, 8, 9, 11]
    checkpoint.files.delete(checkpoint.path("offsets/1"))
    assert checkpoint.batches() == [0, 2, 7, 8, 9, 11]
    message = r"has no batch 3: it has the batches 0, 2, 7 to 9, 11\. .*minBatchesToRetain"
    with pytest.raises(CheckpointNotFoundError, match=message):
        checkpoint.require_batch(3)
    with pytest.raises(CheckpointNotFoundError, match="no entry of batch 1 in 'offsets'"):
        checkpoint.offsets(1)
    with pytest.raises(CheckpointNotFoundError, match="no entry of batch 3 in 'commits'"):
        checkpoint.commit(3)


def test_batches_refuses_a_directory_without_a_query(tmp_path: Path) -> None:
    refused = "is not a checkpoint location of a streaming query"
    for checkpoint in (QueryCheckpoint(str(tmp_path)), QueryCheckpoint(str(tmp_path / "nowhere"))):
        for ask in (checkpoint.batches, checkpoint.newest_batch, checkpoint.stores):
            with pytest.raises(CheckpointNotFoundError, match=refused):
                ask()
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY_ID}))
    checkpoint = QueryCheckpoint(str(tmp_path))
    assert (checkpoint.batches(), checkpoint.operators()) == ([], [])
    with pytest.raises(CheckpointNotFoundError, match="has no batch: no batch is committed yet"):
        checkpoint.newest_batch()
    with pytest.raises(StorageURLError):
        QueryCheckpoint("")


@pytest.mark.parametrize("text", ["", "[]", "{}", "x"])
def test_query_id_names_an_unreadable_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "metadata").write_text(text)
    with pytest.raises(CorruptCheckpointError, match=f"{tmp_path}/metadata has no id of a query"):
        _ = QueryCheckpoint(str(tmp_path)).query_id


def test_operator_names_the_known_ones_for_an_unknown_number(query: WrittenQuery) -> None:
    assert query.checkpoint.operator(1).name == "symmetricHashJoin"
    with pytest.raises(CheckpointNotFoundError, match="operator 2"):
        query.checkpoint.operator(2)
    with pytest.raises(CheckpointNotFoundError, match="operator 7"):
        query.checkpoint.stores(operator=7)
    query.write("state/1/_metadata/metadata", b"v1\n{")
    with pytest.raises(CorruptCheckpointError, match="state/1/_metadata/metadata does not describe"):
        query.checkpoint.operators()


def test_operators_reads_the_metadata_of_the_run_of_a_batch(tmp_path: Path) -> None:
    query = WrittenQuery(str(tmp_path), operators={0: ("stateStoreSave", 1, ("default",))})
    for _ in range(3):
        query.run()
    operator = StatefulOperator.decode(PROCESSOR, "here")
    for first, partitions in ((0, 4), (2, 5), (10, 6)):
        query.write(f"state/1/_metadata/v2/{first}", operator.with_partitions(partitions).encode())
    query.write("state/1/_metadata/v2/.2.crc", b"")
    checkpoint = query.checkpoint
    partitions = [checkpoint.operator(1, batch).partitions for batch in (0, 1, 2, 9, 10, None)]
    assert partitions == [4, 4, 5, 5, 6, 6]
    assert [path.rpartition("/")[2] for path, _ in checkpoint.operator_files(1)] == ["metadata", "0"]


def test_open_store_reads_the_requested_attempt(query: WrittenQuery) -> None:
    store = STORES[2]
    checkpoint = QueryCheckpoint(query.url, state_url="file:///elsewhere", attempts={store: "0" * 16})
    assert checkpoint.state_url == "file:///elsewhere"
    attempts = {version.store: version.attempt_id for version in checkpoint.stores()}
    assert attempts == dict.fromkeys(STORES) | {store: "0" * 16}
    assert {version.attempt_id for version in query.checkpoint.stores()} == {None}


def test_open_store_uses_the_directory_of_the_operator(query: WrittenQuery) -> None:
    names = {store: query.checkpoint.open(store).url.partition("/state/")[2] for store in STORES}
    assert names == {
        StoreId(0, 0): "0/0",
        StoreId(0, 1): "0/1",
        StoreId(1, 0, "left"): "1/0/left",
        StoreId(1, 0, "right"): "1/0/right",
    }
    assert content(query.checkpoint, 1) == {store: {b"batch": b"1"} for store in STORES}


def test_batches_raises_storage_failures_as_such() -> None:
    fs = FaultInjectingFileSystem()
    query = WrittenQuery(fs.url("checkpoint"), operators={0: ("dedupe", 2, ("default",))})
    query.run()
    fs.inject()
    query.checkpoint.stores()
    calls = len(fs.calls)
    assert calls >= 5
    for at in range(1, calls + 1):
        fs.inject(Fault("fail", at))
        with pytest.raises(CheckpointIOError, match=r"injected fault.*then try again"):
            query.checkpoint.stores()
