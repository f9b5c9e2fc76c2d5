"""What an instance of a store knows of its directory, and what it discards."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_statestore.checkpoint import chain
from spark_statestore.checkpoint.files import FileStatus, LocalFileSystem, MemoryFileSystem
from spark_statestore.checkpoint.ledger import Ledger, take_inventory
from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.state.handles import (
    FileStateHandle,
    IncrementalStateHandle,
    OperatorStreamStateHandle,
    StateMetaInfo,
)
from tests.checkpoint.test_registry import StubbornFiles, file


def test_an_inventory_leaves_out_what_is_not_this_packages() -> None:
    uuid = "0f8fad5b-d9cb-469f-a165-70867728950e"
    paths = [
        f"/elsewhere/shared/2-{uuid}",
        "/s/chk-3/_metadata",
        "/s/chk-3/other/file",
        "/s/chk-3/_metadata.0123456789abcdef",
        "/s/chk-4_0123456789abcdef/_metadata",
        f"/s/shared/2-{uuid}",
        "/s/shared/backup",
        "/s/shared",
        "/s/chk-x/_metadata",
        "/s/chk--1/_metadata",
        "/s/chk-3",
        "/s/3.delta",
        "/s/_metadata/schema",
        "/s/chk-5/_metadata",
    ]
    paths = [path.replace("/s/", "/sX/") for path in paths]
    inventory = take_inventory("/sX/", [FileStatus(path, 1) for path in paths])
    assert inventory.checkpoints == {
        CheckpointName(3): {"_metadata", "_metadata.0123456789abcdef", "other/file"},
        CheckpointName(4, "0123456789abcdef"): {"_metadata"},
        CheckpointName(5): {"_metadata"},
    }
    assert inventory.shared == {f"/sX/shared/2-{uuid}": 2}


def test_what_could_not_be_deleted_is_deleted_by_a_later_cleanup(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = StubbornFiles()
    (tmp_path / "chk-1").mkdir()
    (tmp_path / "chk-1" / "_metadata").write_bytes(b"1")
    (tmp_path / "1-shared").write_bytes(b"s")
    ledger = Ledger(files, str(tmp_path))
    shared = OperatorStreamStateHandle(
        state_name_to_partition_offsets={"default": StateMetaInfo((0,))},
        delegate_state_handle=FileStateHandle(files, str(tmp_path / "1-shared"), 1),
    )
    ledger.note(CheckpointName(1), chain.start(1, shared))
    assert ledger.discard_before(2, 0) == 0
    assert ledger.knows(str(tmp_path / "1-shared"))
    assert caplog.text.count("will try again") == 1
    files.stubborn = False
    assert ledger.discard_before(2, 0) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_version_that_is_noted_twice_is_discarded_once(tmp_path: Path) -> None:
    files = LocalFileSystem()
    ledger = Ledger(files, str(tmp_path))
    version = chain.start(
        1,
        OperatorStreamStateHandle(
            state_name_to_partition_offsets={}, delegate_state_handle=file(tmp_path, "1-shared")
        ),
    )
    ledger.note(CheckpointName(1), version)
    ledger.note(CheckpointName(1), version)
    assert ledger.discard_before(2, 0) == 2


def test_the_ledger_can_be_used_while_it_deletes(tmp_path: Path) -> None:
    class Nosy(LocalFileSystem):
        def delete(self, path: str) -> None:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(ledger.note_directory, CheckpointName(9), ["x"]).result(60)
            super().delete(path)

    files = Nosy()
    ledger = Ledger(files, str(tmp_path))
    (tmp_path / "chk-1").mkdir()
    (tmp_path / "chk-1" / "_metadata").write_bytes(b"1")
    stream = OperatorStreamStateHandle(
        state_name_to_partition_offsets={}, delegate_state_handle=file(tmp_path, "1-shared", files)
    )
    ledger.note(CheckpointName(1), chain.start(1, stream))
    assert ledger.discard_before(2, 0) == 2


def version(number: int, *streams: FileStateHandle) -> IncrementalStateHandle:
    """A version with these streams, each of a version of its own."""
    first = number - len(streams) + 1
    handle = chain.start(first, None)
    for at, stream in enumerate(streams, first):
        state = OperatorStreamStateHandle(state_name_to_partition_offsets={}, delegate_state_handle=stream)
        handle = chain.start(at, state) if at == first else chain.extend(handle, at, state)
    return handle


def test_only_what_others_can_replace_is_looked_at_again_and_once() -> None:
    ledger = Ledger(MemoryFileSystem(), "/s")
    ledger.note(CheckpointName(1), version(1))
    ledger.note(CheckpointName(2, "id"), version(2), attempt="id")
    ledger.note(CheckpointName(3), version(3), attempt="mine")
    assert ledger.unconfirmed(2) == []
    assert ledger.unconfirmed(3) == [(CheckpointName(3), "mine")]
    for _ in range(2):
        ledger.confirm(CheckpointName(3))
    assert ledger.unconfirmed(9) == []


def test_strays_go_once_all_before_their_version_are_gone() -> None:
    files = MemoryFileSystem()
    ledger = Ledger(files, "/s")
    for name in ("1-a", "1-b"):
        files.create(f"/s/shared/{name}", b"1")
        ledger.note_stray(f"/s/shared/{name}", 5)
    assert all(ledger.knows(f"/s/shared/{name}") for name in ("1-a", "1-b"))
    assert ledger.discard_before(4, 0) == 0
    assert len(list(files.list_files("/s"))) == 2
    assert ledger.discard_before(5, 0) == 2
    assert list(files.list_files("/s")) == []


def test_a_stream_that_waits_to_be_discarded_is_known(tmp_path: Path) -> None:
    files = StubbornFiles()
    ledger = Ledger(files, str(tmp_path))
    ledger.note(CheckpointName(1), version(1, file(tmp_path, "shared", files)))
    (tmp_path / "chk-1").mkdir()
    assert ledger.discard_before(2, 0) == 1
    assert ledger.knows(str(tmp_path / "shared"))
    assert not ledger.knows(str(tmp_path / "other"))
    files.stubborn = False
    assert ledger.discard_before(2, 0) == 1
    assert not ledger.knows(str(tmp_path / "shared"))


def test_metadata_goes_first_and_what_nobody_knew_of_goes_too(tmp_path: Path) -> None:
    deleted: list[str] = []

    class Noting(LocalFileSystem):
        def delete(self, path: str) -> None:
            deleted.append(path.rpartition("/")[2])
            super().delete(path)

    ledger = Ledger(Noting(), str(tmp_path))
    (tmp_path / "chk-1").mkdir()
    for name in ("ABC", "_metadata", "unknown"):
        (tmp_path / "chk-1" / name).write_bytes(b"1")
    ledger.note_directory(CheckpointName(1), ["ABC", "_metadata"])
    assert ledger.discard_before(2, 0) == 2
    assert deleted == ["_metadata", "ABC"]
    assert list(tmp_path.iterdir()) == []


def test_all_that_was_removed_is_counted(tmp_path: Path) -> None:
    files = LocalFileSystem()
    ledger = Ledger(files, str(tmp_path))
    streams = [file(tmp_path, "1-shared"), file(tmp_path, "2-shared")]
    for number in (1, 2):
        ledger.note(CheckpointName(number), version(number, *streams[:number]))
    assert ledger.discard_before(3, 0) == 4


def test_pinned_versions_stay_with_what_they_use_until_they_are_not_pinned_any_more(tmp_path: Path) -> None:
    ledger = Ledger(LocalFileSystem(), str(tmp_path))
    for version in (1, 2, 3):
        (tmp_path / f"chk-{version}").mkdir()
        (tmp_path / f"chk-{version}" / "_metadata").write_bytes(b"")
        state = OperatorStreamStateHandle(
            state_name_to_partition_offsets={}, delegate_state_handle=file(tmp_path, f"{version}-shared")
        )
        ledger.note(CheckpointName(version), chain.start(version, state))
    stray = file(tmp_path, "0-stray")
    # Of a version before the third one: not of the second one, which is pinned.
    ledger.note_stray(stray.path, 3)
    assert ledger.discard_before(3, 0, {2}) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2-shared", "3-shared", "chk-2", "chk-3"]
    assert ledger.discard_before(3, 0, {2}) == 0
    assert ledger.discard_before(3, 0) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3-shared", "chk-3"]


def test_a_new_pin_makes_the_ledger_look_once(tmp_path: Path) -> None:
    ledger = Ledger(LocalFileSystem(), str(tmp_path))
    looks = []
    for pinned in ([], [4], [4], [], [4], [4, 6]):
        ledger.is_complete = True
        ledger.expect_pinned(pinned)
        looks.append(not ledger.is_complete)
    assert looks == [False, True, False, False, True, True]
