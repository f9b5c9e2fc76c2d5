"""Mutants of checkpoint storage: streams, merged files, formats, and plans of snapshots."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_STORAGE: Final = "spark_statestore/storage"
_FORMATS: Final = "spark_statestore/formats"
_TESTS: Final = "tests/unit"

_STORED: Final = (
    Mutant(
        "chain-applies-merges-twice",
        f"{_STORAGE}/chains.py",
        "later = [entry for entry in chain if entry.version > base.version]",
        "later = [entry for entry in chain if entry.version >= base.version]",
        (f"{_TESTS}/store/test_chain.py",),
        "Values that a batch appended are not there twice once a snapshot replaces its changes.",
    ),
    Mutant(
        "registry-last-use-of-scan",
        f"{_STORAGE}/shared_state_registry.py",
        "self.last_used = max(self.last_used, checkpoint_id)",
        "self.last_used = checkpoint_id",
        (f"{_TESTS}/storage/test_shared_state_registry.py",),
        "A stream stays as long as the newest version that uses it, in whatever order versions are "
        "registered.",
    ),
    Mutant(
        "registry-uses-stream-being-deleted",
        f"{_STORAGE}/shared_state_registry.py",
        "if name in self._running:\n            raise",
        "if name in self._running and checkpoint_id < 0:\n            raise",
        (f"{_TESTS}/storage/test_shared_state_registry.py",),
        "A commit never refers to a stream that a cleanup is deleting.",
    ),
    Mutant(
        "registry-inline-state-unused",
        f"{_STORAGE}/incremental_handle.py",
        "keeps_creator=isinstance(stream, SegmentFileStateHandle)",
        "keeps_creator=isinstance(stream, OperatorStreamStateHandle)",
        (f"{_TESTS}/storage/test_handles.py",),
        "A version stays as long as later ones use the state inside its metadata.",
    ),
    Mutant(
        "delete-error-taken-for-absence",
        f"{_STORAGE}/file_handles.py",
        "except OSError:\n            pass",
        "except OSError:\n            return",
        (f"{_TESTS}/storage/test_handles.py",),
        "A deletion that fails during an outage is repeated, also if storage cannot tell whether the file "
        "exists.",
    ),
    Mutant(
        "merged-takeover-unchecked",
        f"{_STORAGE}/merged_files.py",
        "if is_known or not is_owned or logical.checkpoint.version < newest:",
        "if is_known or logical.checkpoint.version < newest:",
        (f"{_TESTS}/storage/test_merged_files.py",),
        "A run that another one has superseded does not publish a version that Spark committed.",
    ),
    Mutant(
        "merged-lost-part-not-missed",
        f"{_STORAGE}/merged_files.py",
        "missing = [attempt for attempt in attempts if attempt not in self._published]",
        "missing = [attempt for attempt in self._published if attempt not in attempts]",
        (f"{_TESTS}/storage/test_merged_files.py",),
        "A batch is not committed while a store's version was lost with the process that had it.",
    ),
    Mutant(
        "merged-pending-is-published",
        f"{_STORAGE}/merged_files.py",
        "return bool(self._index.pending.live or self._publishing)",
        "return bool(self._publishing)",
        (f"{_TESTS}/backend/test_open_stores.py",),
        "Versions in memory are kept until the file with them is written.",
    ),
    Mutant(
        "merged-uncommitted-rewritten",
        f"{_STORAGE}/merged_index.py",
        "if name.newest < version]",
        "if name.newest <= version]",
        (f"{_TESTS}/storage/test_merged_files.py",),
        "Files with versions that may not be committed are not rewritten, as an attempt may supersede them.",
    ),
    Mutant(
        "merged-superseded-attempt-returns",
        "spark_statestore/storage/merged_index.py",
        "if not physical.live and all(older in empty for older in superseded):",
        "if not physical.live:",
        ("tests/unit/storage/test_merged_files.py",),
        "An attempt that was superseded does not count again once the file of its successor is deleted.",
    ),
    Mutant(
        "merged-file-in-publication-deleted",
        "spark_statestore/storage/merged_index.py",
        "if physical.successor is not None and physical.successor.name is None:",
        "if physical.successor is not None and physical.successor is physical:",
        ("tests/unit/storage/test_merged_views.py",),
        "A file that another thread lists before its publication has ended is not taken for an empty one.",
    ),
    Mutant(
        "merged-copied-attempt-returns",
        "spark_statestore/storage/merged_index.py",
        "copy.physical.replaces.add(physical)",
        "copy.physical.replaces.discard(physical)",
        ("tests/unit/storage/test_merged_views.py",),
        "A superseded attempt that was copied does not count again in the file that the copy replaces.",
    ),
    Mutant(
        "merged-copy-not-preferred",
        "spark_statestore/storage/merged_index.py",
        "return name.is_copy, name.number if name.is_copy else 0, name",
        "return False, 0, name",
        ("tests/unit/query/test_moving_stores.py",),
        "Every process takes a copy for the place of a version, and not a file that is about to be deleted.",
    ),
    Mutant(
        "merged-attempts-of-one-rank",
        "spark_statestore/storage/merged_index.py",
        "logical.rank = max(lowest, before[-1].rank + 1 if before else 0)",
        "logical.rank = max(lowest, before[-1].rank if before else 0)",
        ("tests/unit/storage/test_merged_files.py",),
        "Of several attempts at a version, every process takes the last one.",
    ),
    Mutant(
        "merged-attempt-returns-when-restored",
        f"{_STORAGE}/merged_index.py",
        "return sum(1 + number + write for number, write in counts.values())",
        "return sum(number for number, write in counts.values())",
        (f"{_TESTS}/storage/test_merged_views.py",),
        "An attempt that was superseded while its file was damaged does not count again later.",
    ),
    Mutant(
        "merged-commit-of-task-not-found",
        "spark_statestore/store/commit.py",
        "if self._store.merged.is_in_doubt(self._metadata_path):",
        "if self._store.merged is None:",
        (f"{_TESTS}/query/test_merged_checkpoint.py",),
        "A task can commit a version of which a crash left a part of a merged file.",
    ),
    Mutant(
        "merged-publication-not-found",
        f"{_STORAGE}/merged_files.py",
        "                self._require_to_count(index, objects, name)\n",
        "                check_cancelled()\n",
        (f"{_TESTS}/storage/test_merged_views.py",),
        "A version is not committed in a file that does not count beside a damaged one.",
    ),
    Mutant(
        "merged-damage-taken-for-absence",
        f"{_STORAGE}/merged_lookup.py",
        "damage = error\n",
        "damage = None\n",
        (f"{_TESTS}/storage/test_merged_files.py",),
        "A version in a damaged file of a batch is reported as damaged, and its streams are kept.",
    ),
    Mutant(
        "merged-listing-dated-late",
        f"{_STORAGE}/merged_lookup.py",
        "            index.listed_at = began\n\n",
        "            index.listed_at = time.monotonic()\n\n",
        (f"{_TESTS}/storage/test_merged_files.py",),
        "A file that another process publishes during a listing is found by the next look for it.",
    ),
    Mutant(
        "merged-version-published-twice",
        f"{_STORAGE}/merged_file_system.py",
        "def create_of_parts(self, path: str, parts: Sequence[Buffer]) -> None:\n        "
        "self._require_new(path)",
        "def create_of_parts(self, path: str, parts: Sequence[Buffer]) -> None:\n        "
        "self._files.url(path)",
        (f"{_TESTS}/store/test_merged_commit.py",),
        "A version that is in a merged file is not published again beside it.",
    ),
    Mutant(
        "savepoint-not-durable",
        "spark_statestore/query/state_store.py",
        "locate(savepoint.path, fsync=True)\n        with failing_to(",
        "locate(savepoint.path)\n        with failing_to(",
        ("tests/unit/savepoints/test_faults.py", "-k", "power_loss"),
        "A savepoint that is reported as taken survives a power failure.",
    ),
    Mutant(
        "metadata-cut-off",
        f"{_FORMATS}/metadata.py",
        "if decompressor.unconsumed_tail or not decompressor.eof:",
        "if decompressor.unconsumed_tail:",
        (f"{_TESTS}/store/test_metadata.py",),
        "Metadata whose body is cut off is refused.",
    ),
    Mutant(
        "metadata-other-inline-state",
        f"{_FORMATS}/metadata.py",
        "return bool(zlib.crc32(data[HEADER.size : -FOOTER.size], of_all) == expected)",
        "return bool(zlib.crc32(data[HEADER.size : -FOOTER.size], of_all) or expected)",
        (f"{_TESTS}/store/test_damage.py::test_read_detects_damage_at_every_byte_of_every_file",),
        "Damage of large metadata is found although its inline state is not read with it.",
    ),
    Mutant(
        "decompression-bomb",
        f"{_FORMATS}/messages.py",
        "if uncompressed < -1 or uncompressed > size * _ZSTD_RATIO:",
        "if uncompressed < -1:",
        (f"{_TESTS}/store/test_hostile.py",),
        "Damaged or forged state does not exhaust the memory of a backend.",
    ),
    Mutant(
        "combined-checksum-of-large-parts",
        f"{_FORMATS}/checksums.py",
        "        size >>= 1\n        power += 1",
        "        size >>= 1\n        power = 1",
        (f"{_TESTS}/formats/test_checksums.py",),
        "The checksum that is combined from those of large messages is that of the stream.",
    ),
)

_PLANS: Final = (
    Mutant(
        "option-below-its-bound-accepted",
        "spark_statestore/options.py",
        "number < option.least:",
        "number < option.least - 1:",
        ("tests/unit/test_options.py",),
        "A number below its bound is refused before the query starts.",
    ),
    Mutant(
        "base-is-due-in-each-batch",
        "spark_statestore/storage/snapshot_plan.py",
        "base_bytes + soon > (1 + MOST_ON_TOP) * fresh_bytes",
        "base_bytes + soon > MOST_ON_TOP * fresh_bytes",
        ("tests/unit/storage/test_snapshot_plan.py",),
        "A large state is not uploaded again while its changes are small.",
    ),
    Mutant(
        "runs-begin-before-a-compaction",
        "spark_statestore/storage/snapshot_plan.py",
        "for at in range(len(on_top) - 1, first - 1, -1):",
        "for at in range(len(on_top) - 1, -1, -1):",
        ("tests/unit/storage/test_snapshot_plan.py",),
        "Streams are merged only if memory has all of their changes.",
    ),
    Mutant(
        "small-snapshot-is-never-due",
        "spark_statestore/storage/snapshot_plan.py",
        "is_due = tick or on_top > base_bytes",
        "is_due = on_top > base_bytes",
        ("tests/unit/storage/test_snapshot_plan.py",),
        "The snapshot of a small state is written once its chain exceeds the interval.",
    ),
    Mutant(
        "small-state-chain-grows",
        "spark_statestore/storage/snapshot_plan.py",
        "return inline_up_to if is_due else SMALL_STATE",
        "return inline_up_to if is_due else NOTHING",
        ("tests/unit/storage/test_snapshot_plan.py",),
        "A load of a small state reads no more streams than the interval has.",
    ),
)

MUTANTS: Final = (*_STORED, *_PLANS)
