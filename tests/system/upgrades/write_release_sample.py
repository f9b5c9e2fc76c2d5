"""Write the sample of the present version: ``python -m tests.system.upgrades.write_release_sample``.

It has checkpoints and savepoints of queries on the oldest Spark, and the rows of their state. The sample of a
release stays in the repository as the release wrote it, and later releases must read it and go on from it.
Until 0.1.0 is published, its sample may be written anew.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from spark_statestore import __version__, read_state, savepoint
from spark_statestore._version import SUPPORTED_SPARK
from spark_statestore.query import QueryCheckpoint
from tests.system.upgrades.cases import CASES, CONTINUED, WRITTEN, write_input
from tests.system.upgrades.matrix import FORMATS, build_jar, run

SAMPLES = Path(__file__).parent / "releases"
QUERIES = ("aggregation, update mode", "outer join", "applyInPandasWithState, event time")


def rows_of(path: str) -> dict[str, list[str]]:
    """Return the state at a path: the rows of each store as JSON, sorted."""
    stores = {(version.store.operator, version.store.name) for version in QueryCheckpoint(path).stores()}
    return {
        f"{operator}/{name}": sorted(
            json.dumps(row, default=str, sort_keys=True)
            for row in read_state(path, operator, name).to_pylist()
        )
        for operator, name in sorted(stores)
    }


def write(directory: Path) -> list[dict[str, Any]]:
    """Write the checkpoints and savepoints, and return a description of each query."""
    with tempfile.TemporaryDirectory() as scratch:
        halves, whole = Path(scratch, "halves"), Path(scratch, "whole")
        jobs = []
        for name in QUERIES:
            source = CASES[name].reads
            write_input(halves, source, range(len(WRITTEN)))
            write_input(whole, source, range(len(WRITTEN + CONTINUED)))
            for number in FORMATS:
                job = {"case": name, "format": number}
                place = re.sub(r"\W+", "-", name) + f"-v{number}"
                jobs.append(
                    job | {"checkpoint": str(directory / place / "checkpoint"), "input": str(halves / source)}
                )
                jobs.append(job | {"checkpoint": f"{scratch}/{place}", "input": str(whole / source)})
        results = run(SUPPORTED_SPARK[0], jobs, Path(scratch))
    queries = []
    for first_half, uninterrupted in zip(results[::2], results[1::2], strict=True):
        assert first_half["error"] is None, first_half["error"]
        assert first_half["output"] == uninterrupted["output"][: len(WRITTEN)]
        checkpoint = Path(first_half["checkpoint"])
        copied = savepoint(str(checkpoint), str(checkpoint.parent))
        queries.append(
            {
                "case": first_half["case"],
                "format": first_half["format"],
                "checkpoint": str(checkpoint.relative_to(directory)),
                "savepoint": f"{checkpoint.parent.name}/{copied.name}",
                "state": rows_of(str(checkpoint)),
                "output": uninterrupted["output"][len(WRITTEN) :],
            }
        )
    return queries


def main() -> None:
    """Write the sample's archive, and beside it what a later release has to find."""
    build_jar(SUPPORTED_SPARK[0])
    with tempfile.TemporaryDirectory() as directory:
        queries = write(Path(directory))
        shutil.make_archive(str(SAMPLES / __version__), "xztar", directory)
    expected = json.dumps(queries, separators=(",", ":"), ensure_ascii=False)
    (SAMPLES / f"{__version__}.json").write_text(expected + "\n")


if __name__ == "__main__":
    main()
