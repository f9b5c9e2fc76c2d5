"""Tests of temporary directories of killed and of living processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_statestore.temporary import keep_while_alive, remove_abandoned

ARCHIVE = "spark_statestore-0.1.0.zip"

HOLD = """
import sys, tempfile
from spark_statestore.temporary import keep_while_alive
directory = tempfile.mkdtemp(prefix="spark-statestore-", dir=sys.argv[1])
keep_while_alive(directory)
open(directory + "/socket", "w").close()
print(directory, flush=True)
sys.stdin.readline()
"""

# Waits for the end of its input, so that all of them start at about the same time.
SWEEP = """
import sys
from spark_statestore.temporary import remove_abandoned
print("ready", flush=True)
sys.stdin.readline()
print(len(remove_abandoned(sys.argv[1])), flush=True)
"""


def start(code: str, directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@contextmanager
def holder(parent: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    with start(HOLD, parent) as process:
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def killed(parent: Path) -> Path:
    """A directory whose process was killed."""
    with holder(parent) as (process, directory):
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    return directory


def test_directory_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    directory = killed(tmp_path)
    assert sorted(os.listdir(directory)) == ["lock", "socket"]
    assert remove_abandoned(str(tmp_path)) == [str(directory)]
    assert not directory.exists()
    assert remove_abandoned(str(tmp_path / "nowhere")) == []
    # A removal that was interrupted is resumed.
    directory = killed(tmp_path)
    (directory / "socket").unlink()
    assert remove_abandoned(str(tmp_path)) == [str(directory)]


def test_directory_of_a_living_process_is_kept(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, directory):
        assert remove_abandoned(str(tmp_path)) == []
        assert (directory / "socket").exists()
        # One that is stopped lives.
        process.send_signal(signal.SIGSTOP)
        assert remove_abandoned(str(tmp_path)) == []
    assert remove_abandoned(str(tmp_path)) == [str(directory)]


def test_directory_of_this_process_is_kept(tmp_path: Path) -> None:
    directory = tmp_path / "spark-statestore-abcdefgh"
    directory.mkdir(0o700)
    keep_while_alive(str(directory))
    assert remove_abandoned(str(tmp_path)) == []
    assert directory.exists()


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs namespaces of its own")
def test_directory_of_a_process_in_another_pid_namespace_is_kept(tmp_path: Path) -> None:
    with subprocess.Popen(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        directory = Path(process.stdout.readline().strip())
        if not directory.name:
            pytest.skip("namespaces cannot be made here")
        assert remove_abandoned(str(tmp_path)) == []
        process.stdin.close()
        process.wait()
    assert remove_abandoned(str(tmp_path)) == [str(directory)]


def replace_lock(directory: Path, make: Callable[[Path], object]) -> None:
    (directory / "lock").unlink()
    make(directory / "lock")


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.mark.parametrize(
    "change",
    [
        # Its process may be about to lock it.
        pytest.param(lambda directory: (directory / "lock").unlink(), id="no lock"),
        pytest.param(lambda directory: (directory / "lock").rename(directory / "lock.new"), id="new lock"),
        pytest.param(lambda directory: replace_lock(directory, os.mkfifo), id="pipe for a lock"),
        pytest.param(lambda directory: (directory / "notes.txt").touch(), id="other file"),
        pytest.param(lambda directory: (directory / "socket.old").touch(), id="name that begins alike"),
        pytest.param(lambda directory: (directory / "spark_statestore-.zip").touch(), id="no version"),
        pytest.param(lambda directory: (directory / ARCHIVE).mkdir(), id="directory"),
        pytest.param(lambda directory: directory.chmod(0o755), id="open to others"),
        pytest.param(lambda directory: os.chown(directory, 12345, 12345), id="other user", marks=as_root),
    ],
)
def test_directory_that_may_not_be_abandoned_is_kept_whole(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    directory = killed(tmp_path)
    change(directory)
    before = sorted(os.listdir(directory))
    assert remove_abandoned(str(tmp_path)) == []
    assert sorted(os.listdir(directory)) == before


def test_directory_of_another_name_is_kept(tmp_path: Path) -> None:
    directory = killed(tmp_path)
    for name in ("spark-statestore-", "spark-statestore-abc", "spark-statestore-doctor-abcdef", "x"):
        directory = directory.rename(tmp_path / name)
        assert remove_abandoned(str(tmp_path)) == []
        assert directory.exists()


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "temporary").mkdir()
    target = killed(tmp_path / "elsewhere")
    (tmp_path / "temporary" / target.name).symlink_to(target)
    # The lock of another directory, and a file that a link names.
    linked = killed(tmp_path / "temporary")
    (linked / "lock").unlink()
    (linked / "lock").symlink_to(target / "lock")
    assert remove_abandoned(str(tmp_path / "temporary")) == []
    assert sorted(os.listdir(target)) == ["lock", "socket"]
    precious = tmp_path / "precious"
    precious.touch()
    third = killed(tmp_path / "temporary")
    (third / "socket").unlink()
    (third / "socket").symlink_to(precious)
    assert remove_abandoned(str(tmp_path / "temporary")) == [str(third)]
    assert precious.exists()


def test_starts_at_the_same_time_remove_each_directory_once_and_none_that_is_used(tmp_path: Path) -> None:
    with holder(tmp_path) as (_, living):
        for _ in range(5):
            abandoned = [killed(tmp_path) for _ in range(4)]
            sweeps = [start(SWEEP, tmp_path) for _ in range(4)]
            for sweep in sweeps:
                assert sweep.stdout.readline() == "ready\n"
            for sweep in sweeps:
                sweep.stdin.close()
            counts = [int(sweep.stdout.readline()) for sweep in sweeps]
            for sweep in sweeps:
                assert sweep.wait() == 0
                sweep.stdout.close()
            assert sum(counts) == 4
            assert not any(directory.exists() for directory in abandoned)
            assert sorted(os.listdir(living)) == ["lock", "socket"]
