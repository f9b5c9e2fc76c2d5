"""Tests of control characters in names, state and errors."""

from __future__ import annotations

import pytest

from spark_statestore.cli.output import Output, table
from spark_statestore.errors import CheckpointIOError

ESCAPES = "a\x1b]0;title\x07\x1b[2J\x9b31m\r[red]b[/]\x7f"
SHOWN = r"a\x1b]0;title\x07\x1b[2J\x9b31m\x0d[red]b[/]\x7f"


def test_output_escapes_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output("text")
    out.result({}, table(["name", "value"], [[ESCAPES, 1]]), f"of {ESCAPES}\tand\nmore")
    out.failure(CheckpointIOError(f"{ESCAPES} cannot be read"))
    printed = capsys.readouterr()
    assert printed.out.count(SHOWN) == 2
    assert f"of {SHOWN}" in printed.out
    assert "and\nmore" in printed.out
    assert printed.err == f"error: {SHOWN} cannot be read\n"
    assert not {"\x1b", "\x9b", "\x07", "\r"} & {*printed.out, *printed.err}
