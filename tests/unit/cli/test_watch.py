"""Tests of ``watch``, of a query that goes on meanwhile, and of the shells' ``completion``."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.unit.cli.commands import node, output_of
from tests.unit.query.stored_query import StoredQuery

COMMAND = [sys.executable, "-W", "error", "-m", "spark_statestore.cli", "watch", "--interval", "0.1"]


@contextmanager
def watching(query: StoredQuery, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Watch in another process until it has ended."""
    with subprocess.Popen(
        [*COMMAND, query.url, "--output", "json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_watch_prints_batches_as_they_are_committed(query: StoredQuery) -> None:
    with watching(query, "--count", "3") as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline())]
        query.run(eve=1)
        lines.append(json.loads(process.stdout.readline()))
        query.run(eve=2, ann=7)
        lines.append(json.loads(process.stdout.readline()))
        assert process.wait(30) == 0
    assert [line["batch"] for line in lines] == [2, 3, 4]
    assert [line["stores"][0]["rows"] for line in lines] == [len(state) for state in query.states[2:]]
    for line in lines:
        (ls,) = node("ls", query.url, "--batch", line["batch"])["stores"]
        (store,) = line["stores"]
        same = ("operator", "name", "store", "partitions", "rows", "bytes", "chain_length")
        assert {key: store[key] for key in same} == {key: ls[key] for key in same}
        partitions = [
            node("show", query.url, "--operator", 0, "--partition", partition, "--batch", line["batch"])
            for partition in range(store["partitions"])
        ]
        assert store["snapshot_age"] == max(
            partition["version"] - partition["base_version"] for partition in partitions
        )
        assert line["committed_ms"] == max(partition["created_ms"] for partition in partitions)


def test_watch_ends_with_an_interrupt(query: StoredQuery) -> None:
    with watching(query) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["batch"] == 2
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert (process.stdout.read(), process.stderr.read()) == ("", "")


def test_watch_shows_batches_that_are_committed_again_after_a_rollback(query: StoredQuery) -> None:
    with watching(query, "--count", "2") as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        output_of("rollback", query.url, 1, "--stopped")
        # The command has seen the rollback before the query goes on.
        time.sleep(1)
        query.restart(2).run(eve=1, ann=7)
        again = json.loads(process.stdout.readline())
        assert process.wait(30) == 0
    assert (first["batch"], again["batch"]) == (2, 2)
    assert again["committed_ms"] > first["committed_ms"]


def test_watch_on_a_terminal_replaces_its_table(query: StoredQuery) -> None:
    terminal, inner = pty.openpty()
    termios.tcsetwinsize(inner, (24, 60))
    # Readline, which pytest loads, sets a size of its own.
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment |= {"PYTHONPATH": str(ROOT), "TERM": "xterm"}
    with subprocess.Popen([*COMMAND, query.url, "--count", "2"], stdout=inner, env=environment) as process:
        os.close(inner)
        output = b""
        while part := read_terminal(terminal):
            output += part
            if b"\n" in output and not query.states[3:]:
                query.run(eve=1)
        assert process.wait(30) == 0
    os.close(terminal)
    # Cursor up, erase line: once for each line of the first table.
    assert b"\x1b[1A\x1b[2K" in output
    lines = re.sub(r"\x1b\[[0-9?;]*[A-Za-z]", "", output.decode()).replace("\r", "\n").splitlines()
    assert max(map(len, lines)) <= 60
    assert [int(match[1]) for line in lines if (match := re.match(r" *(\d+) +20", line))][-2:] == [3, 2]


def read_terminal(terminal: int) -> bytes:
    """Return the next output of the process at a terminal, empty at its end."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        # EIO: the process has closed its side.
        return b""


def test_watch_prints_a_table_with_damaged_partitions(query: StoredQuery) -> None:
    (metadata,) = query.directory.glob("state/0/1/chk-3_*/_metadata")
    metadata.write_bytes(b"damaged")
    header, row = output_of("watch", query.url, "--count", 1).splitlines()
    assert header.split()[:2] == ["batch", "committed"]
    assert header.split()[-1] == "damaged"
    assert (row.split()[0], row.split()[-1]) == ("2", "1")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (["spark-statestore", "savepoint", "l"], ["list"]),
        (["spark-statestore", "ls", "--output", ""], ["text", "json"]),
    ],
)
def test_completion_in_bash(tmp_path: Path, words: list[str], completions: list[str]) -> None:
    command = tmp_path / "spark-statestore"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m spark_statestore.cli "$@"\n')
    command.chmod(0o755)
    program = f"""
eval "$(spark-statestore completion bash)"
COMP_WORDS=({" ".join(word or "''" for word in words)})
COMP_CWORD={len(words) - 1}
$(complete -p spark-statestore | sed 's/.*-F \\([^ ]*\\).*/\\1/') spark-statestore
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    process = subprocess.run(
        ["bash", "--norc", "-c", program],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.split() == completions
    assert process.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_has_a_script_for_other_shells(shell: str) -> None:
    assert "_SPARK_STATESTORE_COMPLETE" in node("completion", shell)["script"]
