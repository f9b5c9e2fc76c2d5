"""Tests of `verify`: no problem in an intact checkpoint, one for each kind of damage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from spark_statestore import savepoint
from spark_statestore.errors import CheckpointNotFoundError, ForeignCheckpointError
from spark_statestore.operator_state import ListStateDescriptor, QueryOperatorState
from spark_statestore.query.verify import verify
from tests.unit.query.stored_query import StoredQuery

# What batch 2 needs, of batches 0 to 3: patterns of paths.
NEEDED = [
    "metadata",
    "offsets/1",
    "offsets/2",
    "commits/2",
    "sources/0/0",
    "sources/0/1",
    "sources/0/2",
    "state/0/_metadata/metadata",
    "state/0/0/chk-3*/_metadata",
    "state/0/1/chk-3*/_metadata",
    "state/0/*/shared/1-*",
    "operator-state/limits/chk-2_*/_metadata",
]

# Only the changes at the start are needed here.
CHANGES = ["state/0/0/chk-2*/_metadata", "state/0/1/chk-2*/_metadata"]

LIMITS = ListStateDescriptor("limits", pa.int64())


@pytest.fixture(params=[1, 2])
def query(tmp_path: Path, request: pytest.FixtureRequest) -> StoredQuery:
    """A query with four batches; large changes are in separate files."""
    stored_query = StoredQuery(tmp_path / "checkpoint", request.param)
    stored_query.run(**{f"{'w' * (number % 7)}{number}": number for number in range(100)})
    for batch in (1, 2, 3):
        stored_query.run(ann=batch, carl=batch)
    state = QueryOperatorState(stored_query.url, "limits")
    for batch in range(4):
        with state.batch(batch) as store:
            store.get_list_state(LIMITS).add(batch)
    return stored_query


def needed(query: StoredQuery, patterns: list[str] = NEEDED) -> list[Path]:
    paths = [path for pattern in patterns for path in query.directory.glob(pattern)]
    assert len(paths) >= len(patterns)
    return paths


def test_verify_finds_nothing_in_an_intact_checkpoint(query: StoredQuery) -> None:
    reported: list[tuple[int, int]] = []
    for batch in (3, 2, 1, 0):
        report = verify(query.url, batch, progress=lambda count, total: reported.append((count, total)))
        assert (report.problems, report.ok, report.stores, report.batch) == ((), True, 2, batch)
    assert reported == [(0, 2), (1, 2), (2, 2)] * 4
    assert verify(query.url).batch == 3


def test_verify_reads_every_byte(query: StoredQuery) -> None:
    report = verify(query.url, 2)
    paths = needed(query)
    # Each of the two stores has the changes of two versions inline in its metadata.
    attempts = [attempt for batch in (1, 2) for attempt in query.counted[batch]]
    inside = [attempt.committed.handle.entries[-1].state.state_size for attempt in attempts]
    assert report.bytes == sum(path.stat().st_size for path in paths) + sum(inside)
    assert report.files == len(paths) + len(inside)


def test_verify_ignores_damage_that_the_batch_does_not_need(query: StoredQuery) -> None:
    for path in set(query.directory.rglob("*")) - set(needed(query, NEEDED + CHANGES)):
        if path.is_file() and not path.name.endswith(".crc"):
            path.write_bytes(b"broken")
    assert verify(query.url, 2).ok


def test_verify_of_the_newest_batch_includes_the_uncommitted_one(query: StoredQuery) -> None:
    query.begin()
    assert verify(query.url).ok
    for name in ("offsets/4", "sources/0/4"):
        data = (query.directory / name).read_bytes()
        (query.directory / name).write_bytes(b"v1\n{}")
        assert not verify(query.url).ok
        assert verify(query.url, 2).ok
        (query.directory / name).write_bytes(data)


@pytest.mark.parametrize(
    ("path", "batch", "part"),
    [
        pytest.param("offsets/2", 3, "the offset log, batch 2", id="offsets of the batch before"),
        pytest.param("offsets/3", 2, "the offset log, batch 3", id="offsets of a committed batch"),
        pytest.param("state/0/_metadata/metadata", 3, "the operators", id="operator"),
    ],
)
def test_verify_of_the_newest_batch_needs_a_file(
    query: StoredQuery, path: str, batch: int, part: str
) -> None:
    (query.directory / path).unlink()
    report = verify(query.url)
    assert (report.batch, [problem.what for problem in report.problems]) == (batch, [part])
    assert part != "the operators" or "operator 0" in report.problems[0].message


def test_verify_problem_names_its_part(query: StoredQuery) -> None:
    (changes,) = query.directory.glob("state/0/1/chk-2*/_metadata")
    data = changes.read_bytes()
    changes.write_bytes(data[:60] + bytes([data[60] ^ 0x10]) + data[61:])
    (damaged,) = verify(query.url, 2).problems
    changes.write_bytes(data)
    (path,) = query.directory.glob("state/0/1/chk-3*/_metadata")
    path.unlink()
    path.mkdir()
    (unreadable,) = verify(query.url, 2).problems
    assert (damaged.kind, unreadable.kind) == ("damaged", "unreadable")
    assert damaged.what == unreadable.what == "operator 0, partition 1, store default"
    assert "version 3" in damaged.message
    assert str(query.directory) in damaged.message


def test_verify_finds_a_commit_entry_with_other_partitions(tmp_path: Path) -> None:
    query = StoredQuery(tmp_path / "checkpoint")
    query.run(a=1)
    entry = query.directory / "commits/0"
    version, text = entry.read_text().split("\n")
    node = json.loads(text)
    node["stateUniqueIds"]["0"] *= 2
    query.put("commits/0", f"{version}\n{json.dumps(node)}")
    assert any("4 partitions" in problem.message for problem in verify(query.url).problems)
    node["stateUniqueIds"]["0"] = [[], []]
    query.put("commits/0", f"{version}\n{json.dumps(node)}")
    assert not verify(query.url).ok


def test_verify_reads_a_source_log_from_its_last_compaction(query: StoredQuery) -> None:
    for number in (0, 1):
        (query.directory / f"sources/0/{number}").unlink()
    assert not verify(query.url).ok
    folded = [json.dumps({"path": "file:///input/x", "timestamp": 0, "batchId": n}) for n in (0, 1)]
    query.put("sources/0/1.compact", "\n".join(["v1", *folded]))
    assert verify(query.url).ok
    # Of a batch before, its entries are in there too.
    assert verify(query.url, 0).ok
    (query.directory / "sources/0/2").unlink()
    assert not verify(query.url).ok
    shutil.rmtree(query.directory / "sources")
    assert [problem.what for problem in verify(query.url).problems] == ["source 0"]


def test_verify_reads_state_in_checkpoints_dir(query: StoredQuery, tmp_path: Path) -> None:
    name = json.loads((query.directory / "metadata").read_text())["id"].replace("-", "")
    elsewhere = tmp_path / "elsewhere" / name / "0"
    elsewhere.mkdir(parents=True)
    for partition in "01":
        shutil.move(query.directory / "state/0" / partition, elsewhere / partition)
    assert not verify(query.url).ok
    assert verify(query.url, checkpoints_dir=str(tmp_path / "elsewhere")).ok


def test_verify_refuses_a_directory_without_a_checkpoint(query: StoredQuery, tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="not a checkpoint location"):
        verify(str(tmp_path / "nothing"))
    with pytest.raises(CheckpointNotFoundError, match="no batch 9"):
        verify(query.url, 9)


def test_verify_refuses_state_of_another_provider(tmp_path: Path) -> None:
    query = StoredQuery(tmp_path / "checkpoint", 1)
    query.run(a=1)
    for partition in "01":
        shutil.rmtree(query.directory / "state/0" / partition / "chk-1")
        (query.directory / "state/0" / partition / "1.delta").touch()
    with pytest.raises(ForeignCheckpointError):
        verify(query.url)


def test_verify_reads_all_files_of_a_source_without_a_file_log(query: StoredQuery) -> None:
    for batch in range(4):
        offsets = query.directory / f"offsets/{batch}"
        query.put(f"offsets/{batch}", f'{offsets.read_text()}\n{{"topic":{{"0":{batch}}}}}')
    query.put("sources/1/0", '\0v1\n{"topic":{"0":0}}')
    assert verify(query.url).ok
    (query.directory / "sources/1/0").write_bytes(b"v1")
    assert [problem.what for problem in verify(query.url).problems] == ["source 1"]


def test_verify_finds_an_invalid_source_entry_without_checksums(query: StoredQuery) -> None:
    (query.directory / "sources/0/.2.crc").unlink()
    for broken in (b"", b"x1\n{}", b"v1\n{", b"\xff"):
        (query.directory / "sources/0/2").write_bytes(broken)
        (problem,) = verify(query.url, 2).problems
        assert (problem.what, problem.kind) == ("source 0", "damaged")
    # Checksums that are none themselves.
    for broken in (b"", b"crc\0", b"crc\0\0\0\0\0", b"src\0\0\0\2\0"):
        (query.directory / "sources/0/.1.crc").write_bytes(broken)
        assert not verify(query.url, 1).ok


@pytest.mark.parametrize(
    "name", ["metadata", "offsets/2", "commits/2", "sources/0/2", "state/0/_metadata/metadata"]
)
def test_verify_finds_deeply_nested_json(query: StoredQuery, name: str) -> None:
    path = query.directory / name
    for depth in (300, 100_000):
        nested = '{"id":' * depth + "0" + "}" * depth
        query.put(name, nested if name == "metadata" else f"v1\n{nested}")
        # As Spark's Hadoop file system has written it.
        path.with_name(f".{path.name}.crc").unlink()
        problems = verify(query.url, 2).problems
        assert {problem.kind for problem in problems} == {"damaged"}
        assert "nested" in problems[0].message


def test_verify_reads_schema_files_where_spark_does(query: StoredQuery, tmp_path: Path) -> None:
    operator = query.directory / "state/0/_metadata/metadata"
    node = json.loads(operator.read_text().split("\n")[1])
    schema = query.directory / "state/0/_stateSchema/default/0_x"
    node["stateStoreInfo"][0]["stateSchemaFilePaths"] = [f"file:{schema}"]
    query.put("state/0/_metadata/metadata", f"v2\n{json.dumps(node)}")
    assert [problem.kind for problem in verify(query.url).problems] == ["missing"]
    query.put("state/0/_stateSchema/default/0_x", "schema")
    assert verify(query.url).ok
    schema.write_bytes(b"another")
    assert [problem.kind for problem in verify(query.url).problems] == ["damaged"]
    query.put("state/0/_stateSchema/default/0_x", "schema")
    # Spark would look for it in the old location.
    moved = query.directory.rename(tmp_path / "moved")
    assert [problem.what for problem in verify(str(moved)).problems] == ["the schemas of operator 0"]


def test_verify_accepts_a_moved_savepoint(query: StoredQuery, tmp_path: Path) -> None:
    path = Path(savepoint(query.url, str(tmp_path / "savepoints")).path.removeprefix("file://"))
    moved = path.rename(tmp_path / path.name)
    assert verify(str(moved)).problems == ()
    next(moved.glob("state/0/1/chk-*/_metadata")).write_bytes(b"broken")
    assert not verify(str(moved)).ok
