"""Build hook of the wheel, which compiles the shim and includes its jar."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))

import build_shim


class ShimBuildHook(BuildHookInterface[Any]):
    """Hatchling build hook that builds the jar if its sources have changed."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the jars of the PySparks in use, and include them and those of the present sources."""
        build_shim.build()
        installed = build_shim.find_jars_of_environment()
        if installed is not None:
            build_shim.build(installed)
        jars = build_shim.current_jars()
        build_data["artifacts"] += [jar.relative_to(build_shim.ROOT).as_posix() for jar in jars]
        names = ", ".join(jar.name for jar in jars)
        self.app.display_info(
            f"jars in this wheel: {names}. Each is for one minor version of Spark; 'make wheel' builds all."
        )
