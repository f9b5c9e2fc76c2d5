"""Tests of the command as a program: entry point, help, errors, dependencies."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import zlib
from pathlib import Path

import click
import pytest

from spark_statestore._version import __version__
from spark_statestore.cli.app import app
from spark_statestore.cli.output import size, when
from tests.support.paths import ROOT
from tests.unit.cli.commands import invoke, node, output_of


def commands(group: click.Group = app, prefix: str = "") -> dict[str, click.Command]:
    """All commands by name."""
    by_name = {}
    for name, command in group.commands.items():
        by_name[prefix + name] = command
        if isinstance(command, click.Group):
            by_name |= commands(command, f"{prefix}{name}_")
    return by_name


def top_level_imports(path: Path) -> set[str]:
    """Return the packages that a module imports when it is imported."""
    packages = set()
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Import):
            packages |= {name.name.split(".")[0] for name in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module is not None:
            packages.add(statement.module.split(".")[0])
    return packages


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "spark_statestore.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def test_commands_have_help_and_print_json() -> None:
    assert "Exit codes" in invoke().output
    assert "Exit codes" in output_of("-h")
    for name, command in commands().items():
        result = invoke(*name.split("_"), "--help")
        assert result.exit_code == 0
        assert command.help
        if not isinstance(command, click.Group):
            assert "--output" in result.output, name


def test_cli_page_has_every_command_and_option() -> None:
    text = (ROOT / "docs/cli.md").read_text()
    sections = dict(re.findall(r"^### `([^`]+)`\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    everywhere = {"--output", "--help", "--checkpoints-dir", "--debug"}
    documented = {}
    for usage, section in sections.items():
        name = "_".join(word for word in usage.split() if word.islower())
        documented[name] = set(re.findall(r"`(--[a-z-]+)", section)) - everywhere
    options = {
        name: {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
        for name, command in commands().items()
        if not isinstance(command, click.Group)
    }
    assert documented == {name: option_names - everywhere for name, option_names in options.items()}
    for usage in sections:
        name = "_".join(word for word in usage.split() if word.islower())
        arguments = [
            argument.name for argument in commands()[name].params if isinstance(argument, click.Argument)
        ]
        assert [word.strip("[]").lower() for word in usage.split() if not word.islower()] == arguments


def test_module_is_executable() -> None:
    assert PROJECT["scripts"] == {"spark-statestore": "spark_statestore.cli.__main__:main"}
    assert run("--version").stdout == f"spark-statestore {__version__}\n"
    process = run("ls", "/nowhere/at/all")
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr.startswith("error: ")
    assert "Traceback" not in process.stderr
    assert run("nonsense").returncode == 2


def test_command_imports_ordinary_dependencies_alone() -> None:
    ordinary = {re.split(r"[<>=\[]", requirement)[0] for requirement in PROJECT["dependencies"]}
    permitted = sys.stdlib_module_names | ordinary | {"spark_statestore"}
    # Drawing is an extra, and imported when it is wanted.
    sources = (ROOT / "spark_statestore/cli").glob("*.py")
    imported = {module for path in sources for module in top_level_imports(path)}
    assert {"click", "rich"} <= imported
    assert imported <= permitted


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (zlib.error("no credentials"), "error: no credentials"),
        (ZeroDivisionError("by\nzero"), "ZeroDivisionError: by zero"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
def test_unexpected_error_is_one_line_and_debug_prints_the_traceback(
    monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("spark_statestore.cli.inspect.open_checkpoint", fail)
    expected = f"{message} (unexpected: --debug prints the traceback)"
    assert output_of("ls", "x", code=1) == f"error: {expected}\n"
    assert node("ls", "x", code=1) == {"error": {"type": type(error).__name__, "message": expected}}
    debugged = invoke("ls", "x", "--debug")
    assert (debugged.exit_code, debugged.stdout) == (1, "")
    assert debugged.stderr.startswith("Traceback (most recent call last):")
    assert debugged.stderr.endswith(f"error: {expected}\n")
    debugged = invoke("ls", "x", "--debug", "--output", "json")
    assert "Traceback" in debugged.stderr
    assert json.loads(debugged.stdout)["error"]["message"] == expected


@pytest.mark.parametrize(
    "command",
    sorted(commands().keys() - {"savepoint", "state", "begin-output", "completion", "jar", "doctor", "plan"}),
)
def test_commands_fail_with_one_line_or_one_document(command: str, tmp_path: Path) -> None:
    arguments = [
        "1"
        if argument.name in ("batch", "batch_a", "batch_b", "partitions", "key")
        else str(tmp_path / "none")
        for argument in commands()[command].params
        if isinstance(argument, click.Argument)
    ]
    needed = {"savepoint_trigger": ["--target", str(tmp_path)], "state_erase": ["--where", "true"]}
    options = needed.get(command, [])
    text = invoke(*command.split("_"), *arguments, *options)
    assert (text.exit_code, text.stdout) == (1, "")
    assert re.fullmatch(r"error: [^\n]+\n", text.stderr)
    error = node(*command.split("_"), *arguments, *options, code=1)["error"]
    assert text.stderr == f"error: {error['message']}\n"
    assert error["type"].endswith("Error")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_sizes_have_units(number: int, text: str) -> None:
    assert str(size(number)) == text


def test_times_are_in_utc() -> None:
    assert when(1_704_067_200_123) == "2024-01-01 00:00:00Z"
