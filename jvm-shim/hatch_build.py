"""Build hook of the wheel, which compiles the shim and includes its jars and a bill of materials."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))

import build_shim
import sbom

BILL_OF_MATERIALS = build_shim.SHIM / "target" / "spark-statestore.cdx.json"


class ShimBuildHook(BuildHookInterface[Any]):
    """Hatchling build hook that builds the jar if its sources have changed, and writes the SBOM (PEP 770)."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the jars of the PySparks in use, and include them and those of the present sources."""
        build_shim.build()
        installed = build_shim.find_jars_of_environment()
        if installed is not None:
            build_shim.build(installed)
        jars = build_shim.current_jars()
        build_data["artifacts"] += [jar.relative_to(build_shim.ROOT).as_posix() for jar in jars]
        build_data["sbom_files"].append(self._write_bill_of_materials(jars))
        names = ", ".join(jar.name for jar in jars)
        self.app.display_info(
            f"jars in this wheel: {names}. Each is for one minor version of Spark; 'make wheel' builds all."
        )

    def _write_bill_of_materials(self, jars: list[Path]) -> str:
        """Write the bill of materials, and return its path in the project."""
        core = self.metadata.core
        bill = sbom.bill_of_materials(
            core.name,
            self.metadata.version,
            core.dependencies_complex,
            core.optional_dependencies_complex,
            jars,
        )
        BILL_OF_MATERIALS.parent.mkdir(exist_ok=True)
        BILL_OF_MATERIALS.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
        return BILL_OF_MATERIALS.relative_to(build_shim.ROOT).as_posix()
