"""What a snapshot gives."""

from __future__ import annotations

import pytest

from spark_statestore.errors import IllegalStateError
from spark_statestore.state.handles import ByteStreamStateHandle
from spark_statestore.state.snapshot import SnapshotResult


class Failing(ByteStreamStateHandle):
    """A handle that counts how often it is discarded, and fails to be."""

    discarded = 0

    def discard_state(self) -> None:
        self.discarded += 1
        raise OSError(f"{self.handle_name} stays")


REMOTE, LOCAL = ByteStreamStateHandle("remote", b"12345"), ByteStreamStateHandle("local", b"1234567890")


def test_the_empty_result_is_one_object() -> None:
    assert SnapshotResult.empty() is SnapshotResult.empty()
    assert SnapshotResult.of(None) is SnapshotResult.empty()
    assert SnapshotResult.empty().job_manager_owned is None
    assert SnapshotResult.empty().task_local is None
    assert SnapshotResult.empty().state_size == 0
    SnapshotResult.empty().discard_state()


def test_a_local_copy_of_nothing_is_refused() -> None:
    with pytest.raises(IllegalStateError, match="without the checkpoint's own state"):
        SnapshotResult.with_local_state(None, LOCAL)


def test_the_size_is_that_of_the_checkpoints_own_state() -> None:
    result = SnapshotResult.with_local_state(REMOTE, LOCAL)
    assert (result.job_manager_owned, result.task_local) == (REMOTE, LOCAL)
    assert result.state_size == 5


def test_both_are_discarded_and_the_first_failure_is_raised_with_the_other() -> None:
    remote, local = Failing("remote", b""), Failing("local", b"")
    with pytest.raises(OSError, match="remote stays") as raised:
        SnapshotResult.with_local_state(remote, local).discard_state()
    assert (remote.discarded, local.discarded) == (1, 1)
    assert "local stays" in raised.value.__notes__[0]


def test_results_are_equal_if_their_states_are() -> None:
    result = SnapshotResult.with_local_state(REMOTE, LOCAL)
    same = SnapshotResult.with_local_state(ByteStreamStateHandle("remote", b"12345"), LOCAL)
    assert result == same
    assert hash(result) == hash(same)
    assert result != SnapshotResult.of(REMOTE)
    assert result != REMOTE
    assert "'remote'" in repr(result)
