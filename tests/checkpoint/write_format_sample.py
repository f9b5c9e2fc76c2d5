"""Write a sample of the storage format: ``python -m tests.checkpoint.write_format_sample <new directory>``.

The sample of each format version stays in the repository as the release wrote it, and later
releases must read it. Write another one only for another format version.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from spark_statestore.checkpoint.files import MemoryFileSystem
from spark_statestore.checkpoint.metadata import NamedState, StoreId
from spark_statestore.checkpoint.pending import PendingSnapshot
from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.checkpoint.versions import VersionStore
from spark_statestore.options import StorageOptions
from spark_statestore.state.handles import IncrementalStateHandle
from tests.checkpoint.stores import message

Content = dict[str, dict[bytes, bytes]]

KEY_SCHEMA = '{"type":"struct","fields":[{"name":"k","type":"long","nullable":true,"metadata":{}}]}'
VALUE_SCHEMA = '{"type":"struct","fields":[{"name":"v","type":"string","nullable":true,"metadata":{}}]}'


class Sample:
    """One store that is written version by version, and the rows of each version."""

    def __init__(self, directory: Path, partition: int, options: StorageOptions, *, with_ids: bool) -> None:
        path = directory / "0" / str(partition)
        self._store = VersionStore(StoreId(0, partition), str(path), options, MemoryFileSystem())
        self._with_ids = with_ids
        self._attempts = 0
        self.versions: dict[str, Content] = {}

    def write(self, pending: PendingSnapshot, put: Content, removed: list[bytes]) -> None:
        for number, state in enumerate(("default", "timers")):
            gone = removed if state == "default" else []
            if put.get(state) or gone:
                pending.write(number, message(put.get(state, {}), gone))

    def states(self, rows: Content) -> tuple[NamedState, ...]:
        return (
            NamedState("default", len(rows["default"]), KEY_SCHEMA, VALUE_SCHEMA, "hash", 0),
            NamedState("timers", len(rows["timers"]), KEY_SCHEMA, VALUE_SCHEMA, "prefix", 1),
        )

    def commit(
        self,
        version: int,
        rows: Content,
        put: Content,
        removed: list[bytes] | None = None,
        parent: IncrementalStateHandle | None = None,
        base: IncrementalStateHandle | None = None,
    ) -> IncrementalStateHandle:
        """Commit what makes `rows` of the parent's rows."""
        self._attempts += 1
        attempt = f"{self._attempts:016x}"
        name = CheckpointName(version, attempt if self._with_ids else None)
        pending = self._store.begin(name, attempt, self.states(rows))
        self.write(pending, put, removed or [])
        handle = pending.publish(parent, None, base).handle
        self.versions[name.directory] = rows
        return handle

    def snapshot(self, version: int, rows: Content) -> IncrementalStateHandle:
        pending = self._store.begin_snapshot(version, self.states(rows))
        self.write(pending, rows, [])
        return pending.finish()


def row(number: int) -> dict[bytes, bytes]:
    return {number.to_bytes(8, "little"): f"value {number} ".encode() * (number % 4)}


def grow(sample: Sample) -> None:
    """A base in a shared file, changes inside of metadata, a replaced attempt, an empty version."""
    first: Content = {"default": {}, "timers": {}}
    for number in range(60):
        first["default"] |= row(number)
        first["timers"] |= row(1000 + number // 10)
    one = sample.commit(1, first, first)
    second = {"default": first["default"] | row(300), "timers": first["timers"]}
    gone = next(iter(row(7)))
    del second["default"][gone]
    two = sample.commit(2, second, {"default": row(300)}, [gone], parent=one)
    base = sample.snapshot(2, second)
    third = {"default": second["default"], "timers": second["timers"] | row(400)}
    three = sample.commit(3, third, {"timers": row(400)}, parent=two, base=base)
    fourth = {"default": third["default"] | row(501), "timers": third["timers"]}
    four = sample.commit(4, fourth, {"default": row(501)}, parent=three)
    again = {"default": third["default"] | row(502), "timers": third["timers"]}
    sample.commit(4, again, {"default": row(502)}, parent=three)
    # Built on the attempt that was replaced, if the version alone is the name.
    five = sample.commit(5, fourth, {}, parent=four)
    six = sample.commit(6, {"default": {}, "timers": {}}, {})
    sample.commit(7, {"default": row(1), "timers": {}}, {"default": row(1)}, parent=six)
    sample.commit(8, {**fourth, "default": fourth["default"] | row(600)}, {"default": row(600)}, parent=five)
    small = {"default": row(1), "timers": {}}
    sample.commit(9, small, small)


def main(directory: Path) -> None:
    """Write the sample."""
    directory.mkdir(parents=True)
    options = StorageOptions(file_state_threshold=512)
    contents: list[Content] = []
    versions: dict[str, dict[str, int]] = {}
    for partition, (with_ids, codec) in enumerate([(False, "lz4"), (True, "zstd")]):
        sample = Sample(directory, partition, replace(options, compression=codec), with_ids=with_ids)
        grow(sample)
        for name, rows in sample.versions.items():
            if rows not in contents:
                contents.append(rows)
            versions.setdefault(f"0/{partition}", {})[name] = contents.index(rows)
    described = {
        "versions": versions,
        "rows": [
            {state: {k.hex(): v.hex() for k, v in content.items()} for state, content in rows.items()}
            for rows in contents
        ],
    }
    (directory / "rows.json").write_text(json.dumps(described, separators=(",", ":")) + "\n")
    for empty in directory.rglob("taskowned"):
        shutil.rmtree(empty)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
