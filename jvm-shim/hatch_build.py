"""The wheel's build hook: compiles the shim and puts its jar into the wheel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))

import build_shim


class ShimBuildHook(BuildHookInterface[Any]):
    """Builds the jar if its sources changed since it was built."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Runs before the wheel is put together."""
        build_shim.build()
