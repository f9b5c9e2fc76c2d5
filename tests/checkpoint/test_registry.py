"""Which streams are still needed: the registry, and the ledger over it."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_statestore.checkpoint import chain
from spark_statestore.checkpoint.files import FileStatus, LocalFileSystem
from spark_statestore.checkpoint.ledger import Ledger, take_inventory
from spark_statestore.checkpoint.registry import SharedStateRegistry
from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.state.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    OperatorStreamStateHandle,
    StateMetaInfo,
)


def handle(name: str) -> ByteStreamStateHandle:
    return ByteStreamStateHandle(name, b"")


def test_the_first_handle_of_a_stream_is_the_one_that_counts() -> None:
    registry = SharedStateRegistry()
    first, again = handle("s"), handle("s")
    assert registry.register_reference("s", first, 1) is first
    assert registry.register_reference("s", again, 2) is first
    assert "s" in registry
    assert len(registry) == 1


def test_an_older_checkpoint_that_is_noted_later_does_not_shorten_a_streams_life() -> None:
    registry = SharedStateRegistry()
    registry.register_reference("s", handle("s"), 5)
    registry.register_reference("s", handle("s"), 3)
    assert registry.unregister_unused_state(5) == []
    assert [unused.key for unused in registry.unregister_unused_state(6)] == ["s"]
    assert len(registry) == 0


def test_a_stream_that_could_not_be_discarded_is_tried_again() -> None:
    registry = SharedStateRegistry()
    registry.register_reference("s", handle("s"), 1)
    (unused,) = registry.unregister_unused_state(2)
    registry.register_again(unused)
    assert [again.key for again in registry.unregister_unused_state(2)] == ["s"]


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(1, 9), st.integers(0, 3), st.booleans()), max_size=30
    ),
    st.integers(0, 11),
)
def test_a_stream_lives_as_long_as_its_last_user_and_its_creator_with_it(
    uses: list[tuple[str, int, int, bool]], lowest: int
) -> None:
    registry = SharedStateRegistry()
    created: dict[str, tuple[int, bool]] = {}
    last: dict[str, int] = {}
    for key, version, age, keeps in uses:
        created.setdefault(key, (version - age, keeps))
        last[key] = max(last.get(key, 0), version)
        registry.register_reference(key, handle(key), version, created_by=version - age, keeps_creator=keeps)
    kept = {created[key][0] for key in last if created[key][1] and last[key] >= lowest > created[key][0]}
    assert registry.checkpoints_in_use(lowest) == kept
    unused = {unregistered.key for unregistered in registry.unregister_unused_state(lowest)}
    assert unused == {key for key in last if last[key] < lowest}
    assert all((key in registry) == (key not in unused) for key in last)


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


class StubbornFiles(LocalFileSystem):
    """Refuses to delete, as long as it is told to."""

    stubborn = True

    def delete(self, path: str) -> None:
        if self.stubborn:
            raise PermissionError(path)
        super().delete(path)


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
    assert caplog.text.count("will try again") == 2
    files.stubborn = False
    assert ledger.discard_before(2, 0) == 2
    assert list(tmp_path.iterdir()) == []
