"""What an instance of a store knows of its directory, and what it discards."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_statestore.checkpoint import chain
from spark_statestore.checkpoint.files import FileStatus, LocalFileSystem
from spark_statestore.checkpoint.ledger import Ledger, take_inventory
from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.state.handles import FileStateHandle, OperatorStreamStateHandle, StateMetaInfo
from tests.checkpoint.test_registry import StubbornFiles, file


def test_an_inventory_leaves_out_what_is_not_this_packages() -> None:
    uuid = "0f8fad5b-d9cb-469f-a165-70867728950e"
    paths = [
        "/s/chk-3/_metadata",
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
        f"/elsewhere/shared/2-{uuid}",
    ]
    inventory = take_inventory("/s/", [FileStatus(path, 1) for path in paths])
    assert inventory.checkpoints == {
        CheckpointName(3): {"_metadata", "_metadata.0123456789abcdef"},
        CheckpointName(4, "0123456789abcdef"): {"_metadata"},
    }
    assert inventory.shared == {f"/s/shared/2-{uuid}": 2}


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
