"""Tests of the reservation of a conversion's target: only an interrupted conversion's files are removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_statestore.conversion import claim as claims
from spark_statestore.conversion.claim import claim, remove_interrupted
from spark_statestore.errors import CheckpointExistsError
from spark_statestore.query.query_checkpoint import RESERVED
from spark_statestore.savepoints.new_location import IN_PROGRESS
from tests.support.trees import files_below


def interrupt(target: Path, **changes: object) -> dict[str, bytes]:
    """Leave the files of a conversion whose process has ended, or has what `changes` say."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        marker = json.loads(claim([process.pid])) | changes
    (target / "state/0/0").mkdir(parents=True)
    (target / "_in-progress").write_text(json.dumps(marker))
    (target / "metadata").write_bytes(RESERVED)
    (target / "state/0/0/1.zip").write_bytes(b"state")
    return files_below(target)


def test_interrupted_conversion_is_removed(tmp_path: Path) -> None:
    interrupt(tmp_path / "target")
    (tmp_path / "target/.inprogress.4c3618a5").write_bytes(b"killed while it was written")
    assert remove_interrupted(str(tmp_path / "target"))
    assert not (tmp_path / "target").exists()
    assert not remove_interrupted(str(tmp_path / "target"))


@pytest.mark.parametrize("scope", [["another-boot", "pid:[1]"], [*claims._scope()[:1], "pid:[1]"], []])
def test_conversion_of_another_container_with_the_same_host_name_is_kept(
    tmp_path: Path, scope: list[str]
) -> None:
    before = interrupt(tmp_path / "target", scope=scope)
    with pytest.raises(CheckpointExistsError, match="in another container"):
        remove_interrupted(str(tmp_path / "target"))
    assert files_below(tmp_path / "target") == before


def test_removal_does_not_meet_the_conversion_that_begins_after_another_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    interrupt(target)
    started = claims._started
    again: dict[str, bytes] = {}

    def check(pid: int) -> str | None:
        if not again:
            again["state"] = b"begun"
            # Meanwhile another process removes the files, and begins a conversion that runs.
            assert remove_interrupted(str(target))
            again.update(interrupt(target, **json.loads(claim([os.getpid()]))))
        return started(pid)

    monkeypatch.setattr(claims, "_started", check)
    with pytest.raises(CheckpointExistsError, match="runs in process"):
        remove_interrupted(str(target))
    assert files_below(target).items() <= again.items()
    assert (target / "state/0/0/1.zip").exists()


@pytest.mark.parametrize("error", [PermissionError, ProcessLookupError])
def test_process_that_is_hidden_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    (tmp_path / IN_PROGRESS).write_bytes(claim([os.getpid()]))

    def hidden(path: str, *arguments: object, **options: object) -> object:
        if path.endswith("/stat"):
            raise FileNotFoundError(path)
        return open(path, *arguments, **options)  # type: ignore[call-overload]

    def kill(*_: object) -> None:
        raise error

    # As /proc with hidepid=2 shows a process of another user.
    monkeypatch.setattr(claims, "open", hidden, raising=False)
    monkeypatch.setattr(os, "kill", kill)
    if error is ProcessLookupError:
        assert remove_interrupted(str(tmp_path))
        return
    with pytest.raises(CheckpointExistsError, match="is the target of a conversion that runs"):
        remove_interrupted(str(tmp_path))
    assert (tmp_path / IN_PROGRESS).exists()
