"""Which streams form a version."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_statestore.checkpoint import chain
from spark_statestore.state.handles import ByteStreamStateHandle, OperatorStreamStateHandle, StateMetaInfo

# What a stream does to a number that is kept by name: None in the list stands for no change.
changes = st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=8)


def stream(text: str) -> OperatorStreamStateHandle:
    return OperatorStreamStateHandle(
        state_name_to_partition_offsets={"default": StateMetaInfo((0,))},
        delegate_state_handle=ByteStreamStateHandle(text, text.encode()),
    )


def names(handle: chain.IncrementalStateHandle) -> list[str]:
    return [entry.state.stream_state_handle_id for entry in handle]


def test_a_version_without_rows_has_no_streams() -> None:
    start = chain.start(3, None)
    assert (start.version, start.base_version, len(start)) == (3, 3, 0)
    later = chain.extend(chain.extend(start, 4, None), 5, stream("5"))
    assert (later.version, later.base_version, names(later)) == (5, 3, ["5"])


def test_a_version_is_its_parent_and_its_changes() -> None:
    parent = chain.start(1, stream("1"))
    child = chain.extend(parent, 2, stream("2"))
    assert names(child) == ["1", "2"]
    assert [entry.full for entry in child] == [True, False]
    assert names(parent) == ["1"]


def test_a_newer_base_takes_the_place_of_what_it_covers() -> None:
    handle = chain.start(1, stream("1"))
    for version in (2, 3, 4, 5):
        handle = chain.extend(handle, version, stream(str(version)))
    rebased = chain.rebase(handle, chain.start(3, stream("base")))
    assert (rebased.version, rebased.base_version) == (5, 3)
    assert names(rebased) == ["base", "4", "5"]
    assert [entry.full for entry in rebased] == [True, False, False]


@given(changes=changes, data=st.data())
def test_a_rebased_chain_has_the_base_and_every_later_change_once(
    changes: list[int | None], data: st.DataObject
) -> None:
    handle = chain.start(1, stream("1"))
    for version, change in enumerate(changes, 2):
        handle = chain.extend(handle, version, None if change is None else stream(f"{version}"))
    base = data.draw(st.integers(1, handle.version))
    empty = data.draw(st.booleans())
    rebased = chain.rebase(handle, chain.start(base, None if empty else stream("base")))
    later = [
        f"{version}" for version, change in enumerate(changes, 2) if version > base and change is not None
    ]
    assert names(rebased) == [*([] if empty else ["base"]), *later]
    assert (rebased.version, rebased.base_version) == (handle.version, base)


@pytest.mark.parametrize("version", [2, 6])
def test_a_base_from_outside_the_chain_is_refused(version: int) -> None:
    handle = chain.extend(chain.start(3, stream("3")), 5, stream("5"))
    with pytest.raises(ValueError, match=f"a snapshot of version {version}"):
        chain.rebase(handle, chain.start(version, stream("base")))


def test_a_chain_in_disorder_is_refused() -> None:
    full = chain.ChainEntry(1, True, stream("1"))
    delta = chain.ChainEntry(2, False, stream("2"))
    for entries in ([delta, full], [full, full], [delta, chain.ChainEntry(1, False, stream("1"))]):
        with pytest.raises(ValueError, match="a chain is"):
            chain.IncrementalStateHandle(2, 1, entries)
    for version, base in ((1, 1), (2, 2)):
        with pytest.raises(ValueError, match="does not start"):
            chain.IncrementalStateHandle(version, base, [full, delta])
