"""Tests of `verify` and `repair` of checkpoints with damaged files."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from spark_statestore.errors import (
    CheckpointIOError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    StateStoreError,
)
from spark_statestore.operator_state import ListStateDescriptor, QueryOperatorState
from spark_statestore.query import QueryCheckpoint
from spark_statestore.query.repair import repair
from spark_statestore.query.savepoint import KINDS
from spark_statestore.query.verify import Verifier, verify
from spark_statestore.savepoints.api import Kind, clone, restore, savepoint
from tests.support.damage import Damage, cuts, damaged, flips, replacements
from tests.support.effort import EFFORT
from tests.unit.query.stored_query import StoredQuery
from tests.unit.store.stores import load

LIMITS = ListStateDescriptor("limits", pa.int64())
BATCHES = (0, 1, 2)


# The first tier uses the format that is more likely to fail, soak both.
in_soak = partial(pytest.param, marks=pytest.mark.soak)
mostly_1 = pytest.mark.parametrize("query", [1, in_soak(2)], indirect=True)
mostly_2 = pytest.mark.parametrize("query", [in_soak(1), 2], indirect=True)


@pytest.fixture
def query(tmp_path: Path, request: pytest.FixtureRequest) -> StoredQuery:
    """Three batches; the second one wrote streams to files of their own."""
    stored_query = StoredQuery(tmp_path / "checkpoint", request.param)
    stored_query.run(ann=1, carl=1, bob=1)
    stored_query.run(**{f"{'w' * (number % 5)}{number}": number for number in range(40)})
    # In format v1 a second attempt takes the name of the first one.
    stored_query.begin()
    for partition in (0, 1):
        stored_query.commit(partition, {"ann": 7})
    stored_query.run(ann=3, bob=3)
    state = QueryOperatorState(stored_query.url, "limits")
    for batch in BATCHES:
        with state.batch(batch) as store:
            store.get_list_state(LIMITS).add(batch)
    assert [reads(stored_query, batch) for batch in BATCHES] == [True] * 3
    return stored_query


def reads(query: StoredQuery, batch: int) -> bool:
    """Return True if all state of a batch can be read; assert that it is the state which the batch wrote."""
    checkpoint = QueryCheckpoint(query.url)
    try:
        rows_by_store = {}
        for version in checkpoint.stores(batch):
            rows = load(checkpoint.open(version.store), version.name, version.attempt_id)["default"]
            assert rows == query.partition_rows(version.store.partition, query.states[batch]), batch
            rows_by_store[version.store] = rows
        elements = list(QueryOperatorState(query.url, "limits").read(batch).get_list_state(LIMITS).get())
    except (StateStoreError, OSError, ValueError, KeyError, IndexError, TypeError):
        return False
    assert len(rows_by_store) == 2
    assert elements == list(range(batch + 1))
    return True


def check_verified(query: StoredQuery, damage: Damage) -> None:
    """No batch is found whole that cannot be read."""
    found_any = False
    for batch in BATCHES:
        try:
            ok = verify(query.url, batch).ok
        except CheckpointNotFoundError:
            # A batch without an entry in both of Spark's logs does not exist.
            ok = False
        found_any |= not ok
        if ok:
            assert reads(query, batch) or _may_be_taken_for_none(damage), f"batch {batch} is not whole"
    assert found_any or _is_harmless(query, damage), "the damage was not found"


def _may_be_taken_for_none(damage: Damage) -> bool:
    """Return whether the operator state of a batch is missing altogether.

    Then that of a batch before it counts.
    """
    return damage.data is None and "operator-state" in damage.path.parts


def _is_harmless(query: StoredQuery, damage: Damage) -> bool:
    path, data = damage.path, damage.data
    if path.suffix == ".crc":
        # Hadoop takes a file without checksums for one that has none; of another file of the same bytes it
        # has the same.
        return data is None or data == path.read_bytes()
    # Attempts that do not count, and copies of attempts in case that one takes a name.
    counts = {attempt_id.id for batch in query.counted for attempt_id in batch}
    if "_metadata." in path.name or (
        path.parent.name.startswith("chk-3_") and path.parent.name[6:] not in counts
    ):
        return True
    return _may_be_taken_for_none(damage)


def sample(path: Path) -> Iterator[Damage]:
    size = path.stat().st_size
    if EFFORT > 1:
        yield from flips(path, bits=3)
        yield from cuts(path)
        return
    yield from flips(path, stride=size // 2 + 1)
    yield Damage(path, "the last byte cut off", path.read_bytes()[:-1])


@mostly_1
def test_verify_finds_any_damage_to_a_file(query: StoredQuery) -> None:
    files = sorted(path for path in query.directory.rglob("*") if path.is_file())
    checksums = [path for path in files if path.suffix == ".crc"]
    for path in files:
        if EFFORT == 1 and path in checksums[1:]:
            continue
        state = [file for file in files if file.name == "_metadata" and file.parent != path.parent]
        in_its_place = state if path.name == "_metadata" else files[:1]
        swaps = replacements(path, in_its_place if EFFORT > 1 else in_its_place[:1])
        for damage in (*sample(path), *swaps):
            with damaged(damage):
                check_verified(query, damage)


@pytest.mark.slow
@mostly_2
def test_repair_rolls_back_to_the_newest_readable_batch(query: StoredQuery, tmp_path: Path) -> None:
    files = sorted(path for path in query.directory.rglob("*") if path.is_file() and path.suffix != ".crc")
    outcomes = set()
    for path in files:
        size = path.stat().st_size
        damages = [
            Damage(path, "missing", None),
            *([Damage(path, "emptied", b"")] if EFFORT > 1 else []),
            *flips(path, stride=size if EFFORT == 1 else size // 5 + 1),
            # The format version, as if a newer release had written it.
            *(
                damage
                for damage in flips(path)
                if damage.description.endswith("of byte 8 flipped")
                and (path.name == "_metadata" or path.parent.name == "shared")
            ),
        ]
        for damage in damages:
            with damaged(damage):
                whole = [batch for batch in BATCHES if is_whole(query, batch)]
                shutil.copytree(query.directory, tmp_path / "repaired")
            try:
                copy = StoredQuery.__new__(StoredQuery)
                copy.__dict__.update(query.__dict__, directory=tmp_path / "repaired")
                outcomes.add(check_repaired(copy, whole, damage))
            except BaseException as error:
                error.add_note(f"{damage}; whole: {whole}")
                raise
            finally:
                shutil.rmtree(tmp_path / "repaired")
    assert outcomes >= {2, 1, None}


def is_whole(query: StoredQuery, batch: int) -> bool:
    with contextlib.suppress(CheckpointNotFoundError):
        # Without what Spark had begun after it, which a repair takes back as well.
        return Verifier(QueryCheckpoint(query.url)).verify(batch, begun=False).ok
    return False


def check_repaired(query: StoredQuery, whole: list[int], damage: Damage) -> int | None:
    try:
        result = repair(query.url, stopped=True)
    except (CorruptCheckpointError, CheckpointIOError, CheckpointNotFoundError):
        # Without a whole batch, nothing is changed.
        assert not whole, "there was one"
        return None
    assert result.batch in whole
    # Batches in between are broken only as the newest batch, which needs the entry before it.
    assert all(not verify_as_newest(query, batch, damage) for batch in whole if batch > result.batch)
    report = verify(query.url)
    assert (report.batch, report.problems) == (result.batch, ())
    assert reads(query, result.batch) or _may_be_taken_for_none(damage)
    return result.batch


def verify_as_newest(query: StoredQuery, batch: int, damage: Damage) -> bool:
    """Return True if a batch would be intact as the newest one.

    That also needs log entries of the batch before.
    """
    return damage.path.name != str(batch - 1) or "offsets" not in damage.path.parts


@pytest.mark.parametrize("kind", KINDS)
def test_savepoint_with_files_of_another_query_is_refused(tmp_path: Path, kind: Kind) -> None:
    """Two queries are at the same batch: what one read and what the other has would fit together."""
    savepoints = []
    for name in "ab":
        query = StoredQuery(tmp_path / name)
        query.run(ann=1, bob=1)
        savepoints.append(savepoint(query.url, str(tmp_path / "savepoints"), kind))
    first, second = (Path(entry.path.removeprefix("file://")) for entry in savepoints)
    shutil.copy(first / "_metadata", second / "_metadata")
    new = tmp_path / "new"
    for use in (restore, clone, lambda path, _: verify(path)):
        with pytest.raises(CorruptCheckpointError, match="but its files are of the query"):
            use(str(second), str(new))
    assert not new.exists()
    assert restore(str(first), str(new)) == 0
