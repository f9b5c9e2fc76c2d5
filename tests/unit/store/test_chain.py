"""Handles of versions are chains of streams: started, extended and rebased."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_statestore.storage.chains import extend_chain, rebase_chain, run_of, start_chain
from spark_statestore.storage.incremental_handle import ChainEntry, IncrementalStateHandle
from spark_statestore.storage.operator_handles import OperatorStreamStateHandle
from spark_statestore.storage.stream_handles import ByteStreamStateHandle
from tests.unit.storage.handles import state_in


def stream(text: str) -> OperatorStreamStateHandle:
    return state_in(ByteStreamStateHandle(text, text.encode()), 0)


def names(handle: IncrementalStateHandle) -> list[str]:
    return [entry.state.stream_state_handle_id for entry in handle]


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.booleans(), st.data())
def test_rebase_chain_keeps_every_later_change_once(
    changed: list[bool], base_has_rows: bool, data: st.DataObject
) -> None:
    streams = {version: stream(f"{version}") if has else None for version, has in enumerate(changed, 1)}
    handle = start_chain(1, streams[1])
    for version in range(2, len(streams) + 1):
        handle = extend_chain(parent := handle, version, streams[version])
        assert list(handle)[: len(parent)] == list(parent)
    base = data.draw(st.integers(1, handle.version))
    rebased = rebase_chain(handle, start_chain(base, stream("base") if base_has_rows else None))
    later = [f"{version}" for version in range(base + 1, len(streams) + 1) if streams[version]]
    assert names(rebased) == [*(["base"] if base_has_rows else []), *later]
    assert [entry.full for entry in rebased] == [name == "base" for name in names(rebased)]
    assert (rebased.version, rebased.base_version) == (handle.version, base)


def chain_of(*versions: int) -> IncrementalStateHandle:
    handle = start_chain(1, stream("1"))
    for version in range(2, max(versions) + 1):
        handle = extend_chain(handle, version, stream(str(version)) if version in versions else None)
    return handle


def test_rebase_chain_replaces_merged_entries_with_the_run() -> None:
    handle = rebase_chain(chain_of(2, 3, 4, 6, 7), run_of(2, 6, stream("run")))
    assert (handle.version, handle.base_version) == (7, 1)
    assert names(handle) == ["1", "2", "run", "7"]
    assert [(entry.version, entry.since) for entry in handle] == [(1, None), (2, None), (6, 2), (7, None)]
    again = rebase_chain(handle, run_of(1, 7, None))
    assert names(again) == ["1"]


@pytest.mark.parametrize(
    ("chain", "upload"),
    [
        # A run before the base, after the newest version, and from or to the middle of another one.
        (rebase_chain(chain_of(2, 3, 4), start_chain(3, stream("base"))), run_of(2, 4, stream("run"))),
        (chain_of(2, 3, 4), run_of(2, 5, stream("run"))),
        (rebase_chain(chain_of(2, 3, 4), run_of(1, 3, stream("run"))), run_of(2, 4, stream("other"))),
        (rebase_chain(chain_of(2, 3, 4), run_of(1, 3, stream("run"))), run_of(1, 2, stream("other"))),
        # A snapshot from before the base, and from after the newest version.
        (rebase_chain(chain_of(2, 3, 4), start_chain(3, stream("base"))), start_chain(2, stream("other"))),
        (chain_of(2, 3, 4), start_chain(5, stream("base"))),
    ],
)
def test_rebase_chain_refuses_an_upload_of_other_changes(
    chain: IncrementalStateHandle, upload: IncrementalStateHandle
) -> None:
    with pytest.raises(ValueError, match=r"not in the past|a part of the changes"):
        rebase_chain(chain, upload)


def applied(handle: IncrementalStateHandle) -> set[int]:
    """Return the versions whose changes a chain has, each once."""
    versions: list[int] = []
    for entry in handle:
        versions += range(1 if entry.full else entry.parent_version + 1, entry.version + 1)
    assert len(set(versions)) == len(versions)
    return set(versions)


@given(data=st.data())
def test_rebase_chain_keeps_every_change_once_with_runs(data: st.DataObject) -> None:
    handle = start_chain(1, stream("1"))
    for version in range(2, 12):
        handle = extend_chain(handle, version, stream(str(version)))
        ends = sorted({handle.base_version, *(entry.version for entry in handle)})
        since, end = data.draw(st.tuples(st.sampled_from(ends), st.sampled_from(ends)))
        if since < end:
            handle = rebase_chain(handle, run_of(since, end, stream(f"run to {end}")))
        elif data.draw(st.booleans()):
            handle = rebase_chain(handle, start_chain(since, stream("base")))
        assert applied(handle) == set(range(1, version + 1))


def test_chain_entry_refuses_a_run_that_is_none() -> None:
    for full, since in ((True, 1), (False, 3), (False, 4), (False, -1)):
        with pytest.raises(ValueError, match="a run of the changes since"):
            ChainEntry(3, full, stream("3"), since)
    base, run = ChainEntry(1, True, stream("1")), ChainEntry(4, False, stream("4"), 1)
    for entries, start in (([base, ChainEntry(2, False, stream("2")), run], 1), ([run], 2)):
        with pytest.raises(ValueError, match="a run overlaps"):
            IncrementalStateHandle(4, start, entries)


def test_handle_refuses_entries_out_of_order() -> None:
    full = ChainEntry(1, True, stream("1"))
    delta = ChainEntry(2, False, stream("2"))
    for entries in ([delta, full], [full, full], [delta, ChainEntry(1, False, stream("1"))]):
        with pytest.raises(ValueError, match="a chain is"):
            IncrementalStateHandle(2, 1, entries)
    for version, base in ((1, 1), (2, 2)):
        with pytest.raises(ValueError, match="does not start"):
            IncrementalStateHandle(version, base, [full, delta])
