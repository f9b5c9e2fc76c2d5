"""CycloneDX bill of materials of the wheel: its jars and its declared dependencies."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import build_shim
from packaging.requirements import Requirement
from packaging.version import Version

DEVELOPMENT_EXTRAS = frozenset({"demo", "docs", "fuzz", "lint", "mutation", "test"})
"""Extras of people who work on the package, which its users do not install."""

_LICENSES = [{"license": {"id": "Apache-2.0"}}]

Component = dict[str, Any]


def bill_of_materials(
    name: str,
    version: str,
    dependencies: Mapping[str, Requirement],
    extras: Mapping[str, Mapping[str, Requirement]],
    jars: Sequence[Path],
) -> dict[str, Any]:
    """Return the bill of materials, whose content depends on the arguments and SOURCE_DATE_EPOCH only.

    A dependency has no version, which is the choice of its user: its purl has the range of versions. What
    the jars are compiled against is a component that is excluded, as the wheel does not ship it.

    Parameters
    ----------
    name, version
        Of the package.
    dependencies
        Requirements of the package, by name.
    extras
        Those of its extras, by extra and name.
    jars
        The jars that the wheel ships.
    """
    root = f"pkg:pypi/{name}@{version}"
    required = [_dependency(requirement, "required") for requirement in dependencies.values()]
    optional = {
        requirement.name: _dependency(requirement, "optional")
        for extra, requirements in sorted(extras.items())
        if extra not in DEVELOPMENT_EXTRAS
        for requirement in requirements.values()
        if requirement.name not in dependencies
    }
    shipped = {jar.name: _jar(jar, version) for jar in jars}
    compiled: dict[str, Component] = {}
    edges: dict[str, list[str]] = {}
    for jar in jars:
        spark, scala = build_shim.build_versions(jar)
        libraries = [
            _library("org.apache.spark", "spark-sql_2.13", spark),
            _library("org.scala-lang", "scala-library", scala),
        ]
        compiled |= {library["bom-ref"]: library for library in libraries}
        edges[jar.name] = [library["bom-ref"] for library in libraries]
    components = [*required, *optional.values(), *shipped.values(), *compiled.values()]
    edges[root] = [component["bom-ref"] for component in (*required, *optional.values(), *shipped.values())]
    metadata: dict[str, Any] = {
        "component": {
            "type": "library",
            "bom-ref": root,
            "name": name,
            "version": version,
            "purl": root,
            "licenses": _LICENSES,
        }
    }
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        metadata["timestamp"] = datetime.fromtimestamp(int(epoch), UTC).isoformat()
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": metadata,
        "components": sorted(components, key=lambda component: component["bom-ref"]),
        "dependencies": [
            {"ref": component, "dependsOn": sorted(others)} for component, others in sorted(edges.items())
        ],
    }


def _dependency(requirement: Requirement, scope: str) -> Component:
    # A range of versions in a purl lists its bounds by version.
    bounds = sorted(requirement.specifier, key=lambda bound: Version(bound.version))
    versions = "|".join(map(str, bounds))
    purl = f"pkg:pypi/{requirement.name}?vers=" + quote(f"vers:pypi/{versions}", safe=":/")
    return {"type": "library", "bom-ref": purl, "name": requirement.name, "purl": purl, "scope": scope}


def _jar(jar: Path, version: str) -> Component:
    digest = hashlib.sha256(jar.read_bytes()).hexdigest()
    return {
        "type": "library",
        "bom-ref": jar.name,
        "name": jar.name,
        "version": version,
        "scope": "required",
        "hashes": [{"alg": "SHA-256", "content": digest}],
        "licenses": _LICENSES,
    }


def _library(group: str, name: str, version: str) -> Component:
    purl = f"pkg:maven/{group}/{name}@{version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "group": group,
        "name": name,
        "version": version,
        "purl": purl,
        "scope": "excluded",
        "licenses": _LICENSES,
    }
