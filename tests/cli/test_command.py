"""The command as a program: its entry point, its help, and what it says without what it needs."""

from __future__ import annotations

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
from tests.cli.running import invoke, said

ROOT = Path(__file__).resolve().parent.parent.parent

COMMANDS = [
    "clone",
    "diff",
    "doctor",
    "gc",
    "get",
    "jar",
    "ls",
    "plot",
    "repair",
    "rescale",
    "rollback",
    "savepoint",
    "show",
    "verify",
    "savepoint_dispose",
    "savepoint_list",
    "savepoint_restore",
    "savepoint_show",
    "savepoint_trigger",
]


def commands(group: click.Group = app, prefix: str = "") -> dict[str, click.Command]:
    """All commands by name."""
    found = {}
    for name, command in group.commands.items():
        found[prefix + name] = command
        if isinstance(command, click.Group):
            found |= commands(command, f"{prefix}{name}_")
    return found


def run(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([*([str(path)] if path else []), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "spark_statestore.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": paths},
    )


def test_the_commands_are_these() -> None:
    assert sorted(commands()) == sorted(COMMANDS)


def test_every_command_has_help_and_prints_json() -> None:
    for name, command in commands().items():
        result = invoke(*name.split("_"), "--help")
        assert result.exit_code == 0
        assert command.help
        if not isinstance(command, click.Group):
            assert "--output" in result.output, name


def test_the_documentation_has_every_command_and_option() -> None:
    text = (ROOT / "docs/cli.md").read_text()
    sections = dict(re.findall(r"^### `([^`]+)`\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    everywhere = {"--output", "--help", "--checkpoints-dir"}
    documented = {}
    for usage, section in sections.items():
        name = "_".join(word for word in usage.split() if word.islower())
        documented[name] = set(re.findall(r"`(--[a-z-]+)", section)) - everywhere
    options = {
        name: {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
        for name, command in commands().items()
        if not isinstance(command, click.Group)
    }
    assert documented == {name: found - everywhere for name, found in options.items()}
    for usage in sections:
        name = "_".join(word for word in usage.split() if word.islower())
        wanted = [
            argument.name for argument in commands()[name].params if isinstance(argument, click.Argument)
        ]
        assert [word.strip("[]").lower() for word in usage.split() if not word.islower()] == wanted


@pytest.mark.parametrize("name", ["gc", "repair", "rollback", "savepoint_dispose"])
def test_what_deletes_can_be_tried_first(name: str) -> None:
    assert any("--dry-run" in parameter.opts for parameter in commands()[name].params)


def test_it_is_a_program() -> None:
    assert run("--version").stdout == f"spark-statestore {__version__}\n"
    done = run("ls", "/nowhere/at/all")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert run("nonsense").returncode == 2


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_its_extra_it_says_what_to_install(missing: str, tmp_path: Path) -> None:
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('no', name='{missing}')\n")
    done = run("ls", "x", path=tmp_path)
    assert done.returncode == 2
    assert "spark-statestore[cli]" in done.stderr
    assert missing in done.stderr


def test_errors_of_drivers_are_no_bugs(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_credentials(*_: object, **__: object) -> None:
        raise zlib.error("no credentials")

    monkeypatch.setattr("spark_statestore.cli.overview.open_checkpoint", no_credentials)
    assert said("ls", "x", code=1) == "error: error: no credentials\n"
    monkeypatch.setattr("spark_statestore.cli.overview.open_checkpoint", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        invoke("ls", "x")


def test_the_entry_point_is_the_command() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"spark-statestore": "spark_statestore.cli.__main__:main"}
    assert {"cli", "plot"} <= project["optional-dependencies"].keys()


def test_a_command_without_arguments_shows_help() -> None:
    assert "Exit codes" in invoke().output
    assert "Exit codes" in said("-h")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (3 << 40, "3.0 TiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_sizes_as_people_read_them(number: int, text: str) -> None:
    assert str(size(number)) == text


def test_times_as_people_read_them() -> None:
    assert when(1_704_067_200_123) == "2024-01-01 00:00:00Z"
