"""Tests of the reservation of a conversion's target."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_statestore.conversion import claim as module
from spark_statestore.conversion.claim import claim, remove_interrupted
from spark_statestore.errors import CheckpointExistsError
from spark_statestore.savepoints.restore import IN_PROGRESS


@pytest.mark.parametrize("error", [PermissionError, ProcessLookupError])
def test_process_that_is_hidden_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    (tmp_path / IN_PROGRESS).write_bytes(claim([os.getpid()]))

    def hidden(*_: object, **__: object) -> None:
        raise FileNotFoundError("/proc/1/stat")

    def kill(*_: object) -> None:
        raise error

    # As /proc with hidepid=2 shows a process of another user.
    monkeypatch.setattr(module, "open", hidden, raising=False)
    monkeypatch.setattr(os, "kill", kill)
    if error is ProcessLookupError:
        assert remove_interrupted(str(tmp_path))
        return
    with pytest.raises(CheckpointExistsError, match="is the target of a conversion that runs"):
        remove_interrupted(str(tmp_path))
    assert (tmp_path / IN_PROGRESS).exists()
