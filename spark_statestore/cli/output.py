"""What commands print: tables for people or one JSON document for programs, progress, and errors."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from spark_statestore.checkpoint.query.workers import Progress as Report
from spark_statestore.errors import OptionError, StateStoreError, StorageURLError

__all__ = ["FAILED", "USAGE", "Output", "plain", "size", "table", "when", "with_output"]

FAILED: Final = 1
"""Exit code: it failed, or something was found that is not as it should be."""

USAGE: Final = 2
"""Exit code: the command was not given as it has to be."""

# All but tabs and line ends.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")

# A table is as wide as it is: folded into a terminal's width, its cells could not be read, nor copied.
_WIDE: Final = 10_000


class Output:
    """Where a command's result goes.

    Parameters
    ----------
    form
        ``text`` or ``json``.
    """

    def __init__(self, form: str) -> None:
        self.is_json = form == "json"
        self._console = _console(sys.stdout, _WIDE)

    def result(self, node: Any, *parts: Table | str) -> None:
        """Print a result.

        Parameters
        ----------
        node
            What it is as JSON; see `plain`.
        parts
            What it is as text.
        """
        if self.is_json:
            click.echo(json.dumps(plain(node), indent=2, ensure_ascii=False))
            return
        for part in parts:
            if isinstance(part, str):
                self._console.print(_shown(part), soft_wrap=True)
            else:
                self._console.print(part)

    def failure(self, error: Exception) -> None:
        """Say what went wrong: as text to standard error, as JSON to standard output."""
        if self.is_json:
            click.echo(json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}, indent=2))
        else:
            name = "" if isinstance(error, StateStoreError) else f"{type(error).__name__}: "
            click.echo(_shown(f"error: {name}{error}"), err=True)

    @contextmanager
    def progress(self, what: str) -> Iterator[Report]:
        """A bar on standard error, where that is a terminal.

        Yields
        ------
        callable
            Takes how much is done and of how much; until it is called the bar moves without saying so.
        """
        console = _console(sys.stderr)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)


def with_output(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the option ``--output`` and an `Output`, and turn this package's errors into exit codes."""

    @functools.wraps(command)
    def run(*args: Any, form: str, **kwargs: Any) -> None:
        out = Output(form)
        try:
            command(out, *args, **kwargs)
        except (OptionError, StorageURLError) as error:
            out.failure(error)
            raise click.exceptions.Exit(USAGE) from error
        except (StateStoreError, OSError) as error:
            out.failure(error)
            raise click.exceptions.Exit(FAILED) from error
        except Exception as error:
            # Drivers of storages raise errors of their own, for credentials above all. What is raised here is a bug.
            if type(error).__module__.partition(".")[0] in ("builtins", "click", "spark_statestore"):
                raise
            out.failure(error)
            raise click.exceptions.Exit(FAILED) from error

    return click.option(
        "--output",
        "form",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="How the result is printed.",
    )(run)


def plain(node: Any) -> Any:
    """A value as JSON can have it; what it has not, such as bytes and times, becomes text."""
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        fields = {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
        return plain(fields)
    if isinstance(node, dict):
        return {str(key): plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [plain(value) for value in node]
    if node is None or isinstance(node, bool | int | str):
        return node
    if isinstance(node, float):
        # JSON has neither infinities nor NaN.
        return node if node - node == 0 else str(node)
    if isinstance(node, bytes):
        return node.hex()
    if isinstance(node, datetime.date | datetime.time):
        return node.isoformat()
    return str(node)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table; numbers are aligned to the right."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    cells = [list(row) for row in rows]
    for number, column in enumerate(columns):
        numeric = bool(cells) and all(isinstance(row[number], int | float | _Size) for row in cells)
        made.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        made.add_row(*(Text("" if cell is None else _shown(str(cell))) for cell in row))
    return made


def _shown(text: str) -> str:
    """Text whose control characters show as such: a terminal would do what state or a name says in them."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class _Size(int):
    def __str__(self) -> str:
        value = float(self)
        for unit in _UNITS:
            if value < 1024 or unit == _UNITS[-1]:
                return f"{int(value)} {unit}" if unit == "B" else f"{value:.1f} {unit}"
            value /= 1024
        raise AssertionError


def size(number: int) -> _Size:
    """Bytes, which print as people read them."""
    return _Size(number)


def when(milliseconds: int) -> str:
    """A time, in UTC."""
    moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    return moment.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


def _console(stream: Any, width: int | None = None) -> Console:
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)
