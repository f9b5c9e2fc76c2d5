"""Streams that another thread closes while they are written."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spark_statestore.checkpoint.files import LocalFileSystem
from spark_statestore.checkpoint.streams import FsCheckpointStateOutputStream, MemoryCheckpointOutputStream
from spark_statestore.errors import CheckpointIOError
from spark_statestore.state.snapshot import CancellableStream


class Stalling(FsCheckpointStateOutputStream):
    """A stream to files whose storage takes as long as the test likes, once it is told to stall."""

    stall_in = ""

    def __init__(self, directory: Path) -> None:
        super().__init__(LocalFileSystem(), str(directory), 0, 0)
        self.entered, self.go_on = threading.Event(), threading.Event()

    def stall(self, where: str) -> None:
        if self.stall_in == where:
            self.entered.set()
            assert self.go_on.wait(30)

    def write(self, data: bytes) -> None:
        self.stall("write")
        super().write(data)

    def close_and_get_handle(self):
        handle = super().close_and_get_handle()
        self.stall("finish")
        return handle


def run(action) -> tuple[threading.Thread, list[Exception]]:
    errors: list[Exception] = []

    def act() -> None:
        try:
            action()
        except CheckpointIOError as error:
            errors.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    return thread, errors


def test_it_passes_everything_on() -> None:
    with CancellableStream(MemoryCheckpointOutputStream(100)) as out:
        assert out.close_and_get_handle() is None
        out.write(b"ab")
        out.flush()
        out.sync()
        assert out.get_pos() == 2
        handle = out.close_and_get_handle()
    assert handle.data == b"ab"


def test_closing_it_closes_the_stream_at_once(tmp_path: Path) -> None:
    stream = FsCheckpointStateOutputStream(LocalFileSystem(), str(tmp_path), 0, 0)
    out = CancellableStream(stream)
    out.write(b"ab")
    assert len(list(tmp_path.iterdir())) == 1
    out.close()
    assert list(tmp_path.iterdir()) == []
    for action in (out.flush, out.close_and_get_handle, lambda: out.write(b"c")):
        with pytest.raises(CheckpointIOError, match="closed while it was written"):
            action()


def test_closing_does_not_wait_for_a_write_which_then_leaves_nothing(tmp_path: Path) -> None:
    stream = Stalling(tmp_path)
    stream.stall_in = "write"
    out = CancellableStream(stream)
    thread, errors = run(lambda: out.write(b"ab"))
    assert stream.entered.wait(30)
    out.close()
    assert thread.is_alive()
    stream.go_on.set()
    thread.join()
    assert errors == []
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CheckpointIOError, match="closed"):
        stream.write(b"c")


def test_a_stream_that_is_closed_while_it_is_finished_leaves_nothing(tmp_path: Path) -> None:
    stream = Stalling(tmp_path)
    stream.stall_in = "finish"
    out = CancellableStream(stream)
    out.write(b"ab")
    thread, errors = run(out.close_and_get_handle)
    assert stream.entered.wait(30)
    assert len(list(tmp_path.iterdir())) == 1
    out.close()
    stream.go_on.set()
    thread.join()
    assert [type(error) for error in errors] == [CheckpointIOError]
    assert list(tmp_path.iterdir()) == []
