"""Output of the commands: tables or one JSON document, progress bars, and errors."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from spark_statestore.errors import OptionError, StateStoreError, StorageURLError

FAILED: Final = 1
"""Exit code of a failure or a finding."""

USAGE: Final = 2
"""Exit code of wrong usage."""

# Control characters without tab and line feed.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")

# Tables are not folded to the terminal's width, so that cells can be copied.
_WIDE: Final = 10_000


Report = Callable[..., None]
"""Updates a progress bar with the number of items done, their total, and optionally another text."""


class Output:
    """Output of one command: ``text`` or ``json``, with the tracebacks of failures if requested."""

    def __init__(self, form: str, *, shows_tracebacks: bool = False) -> None:
        self.is_json = form == "json"
        self._shows_tracebacks = shows_tracebacks
        self._console = _console(sys.stdout, _WIDE)

    @property
    def is_terminal(self) -> bool:
        """Whether standard output is a terminal."""
        return self._console.is_terminal

    def result(self, node: Any, *parts: Table | str) -> None:
        """Print a result: the parts as text, or the node as JSON, see `plain`."""
        if self.is_json:
            _print_json(plain(node))
            return
        for part in parts:
            if isinstance(part, str):
                self._console.print(_shown(part), soft_wrap=True)
            else:
                self._console.print(part)

    def line(self, node: Any, part: Table) -> None:
        """Print one of several results at once: the part as text, or the node as a line of JSON."""
        if self.is_json:
            click.echo(json.dumps(plain(node), ensure_ascii=False))
        else:
            self._console.print(part)
        sys.stdout.flush()

    @contextmanager
    def live(self) -> Iterator[Callable[[Table], None]]:
        """Show a table on the terminal, which is replaced by the next one."""
        # In the terminal's own width: the lines of a wide table would wrap, and not be replaced.
        with Live(console=_console(sys.stdout), auto_refresh=False) as shown:
            yield lambda part: shown.update(part, refresh=True)

    def failure(self, error: Exception) -> None:
        """Print an error: as text to standard error, as JSON to standard output."""
        if self._shows_tracebacks:
            click.echo(_shown("".join(traceback.format_exception(error))), err=True)
        message = one_line(error)
        if self.is_json:
            _print_json({"error": {"type": type(error).__name__, "message": message}})
        else:
            click.echo(_shown(f"error: {message}"), err=True)

    @contextmanager
    def progress(self, description: str) -> Iterator[Report]:
        """Show a progress bar on standard error, if that is a terminal.

        The bar is indeterminate until the first report.
        """
        console = _console(sys.stderr)
        if not console.is_terminal:
            # A bar that is disabled ends with an empty line before rich 14.3.
            yield lambda completed, total, message=None: None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(description, total=None)
            yield lambda completed, total, message=None: bar.update(
                task, completed=completed, total=total, description=message
            )


def with_output(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options ``--output`` and ``--debug`` to a command, and pass an `Output` to it.

    Errors become exit codes.
    """

    @functools.wraps(command)
    def run(*args: Any, form: str, debug: bool, **kwargs: Any) -> None:
        out = Output(form, shows_tracebacks=debug)
        try:
            command(out, *args, **kwargs)
        except (click.exceptions.Exit, click.Abort, BrokenPipeError):
            # Click handles these; a broken pipe means that the reader, such as head, has ended.
            raise
        except click.ClickException as error:
            if not out.is_json:
                raise
            out.failure(error)
            raise click.exceptions.Exit(error.exit_code) from error
        except Exception as error:
            out.failure(error)
            usage = isinstance(error, OptionError | StorageURLError)
            raise click.exceptions.Exit(USAGE if usage else FAILED) from error

    run = click.option("--debug", is_flag=True, help="Print the traceback of an error as well.")(run)
    return click.option(
        "--output",
        "form",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Output format.",
    )(run)


def one_line(error: Exception) -> str:
    """Return an error as one line; for one of another package with its type and a hint at --debug."""
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, StateStoreError):
        return str(error)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if isinstance(error, OSError) else f"{text} (unexpected: --debug prints the traceback)"


def plain(node: Any) -> Any:
    """Convert a value for JSON; bytes, times and other types become text."""
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


def _print_json(node: Any) -> None:
    click.echo(json.dumps(node, indent=2, ensure_ascii=False))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Build a table; numbers are aligned to the right."""
    rich_table = Table(box=None, pad_edge=False, header_style="bold")
    cells = [list(row) for row in rows]
    for number, column in enumerate(columns):
        numeric = bool(cells) and all(isinstance(row[number], int | float | _Size) for row in cells)
        rich_table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        rich_table.add_row(*(Text("" if cell is None else _shown(str(cell))) for cell in row))
    return rich_table


def _shown(text: str) -> str:
    """Escape control characters, so that state or names cannot control the terminal."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


class _Size(int):
    def __str__(self) -> str:
        value = float(self)
        for unit in _UNITS:
            if value < 1024 or unit == _UNITS[-1]:
                return f"{int(value)} {unit}" if unit == "B" else f"{value:.1f} {unit}"
            value /= 1024
        raise AssertionError


def size(number: int) -> _Size:
    """Return a size that prints with a unit."""
    return _Size(number)


def when(milliseconds: int) -> str:
    """Format a time in UTC."""
    moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    return moment.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


def _console(stream: Any, width: int | None = None) -> Console:
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)
