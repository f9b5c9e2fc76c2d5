"""The state of one operator refuses subtasks out of range."""

from __future__ import annotations

import pytest

from spark_statestore.operator_state.metadata import OperatorState
from spark_statestore.storage.stream_handles import ByteStreamStateHandle


@pytest.mark.parametrize(
    ("parallelism", "most", "subtask"), [(0, 1, None), (2, 1, None), (2, 2, 2), (2, 2, -1)]
)
def test_operator_state_refuses_numbers_out_of_range(
    parallelism: int, most: int, subtask: int | None
) -> None:
    subtasks = {} if subtask is None else {subtask: ByteStreamStateHandle("s", b"")}
    with pytest.raises(ValueError, match="'op'"):
        OperatorState("op", parallelism, most, subtasks)
