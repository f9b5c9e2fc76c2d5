"""Helpers that run commands in this process."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from spark_statestore.cli.app import app


def invoke(*arguments: object) -> Result:
    """Run a command; what it raises, but for its exit, is raised."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def output_of(*arguments: object, code: int = 0) -> str:
    """Return the text output of a command."""
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    return result.output


def node(*arguments: object, code: int = 0) -> Any:
    """Return the JSON output of a command; assert that it is the only output."""
    result = invoke(*arguments, "--output", "json")
    assert result.exit_code == code, result.output
    assert result.stderr == ""
    return json.loads(result.stdout)
