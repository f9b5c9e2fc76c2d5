"""Mutants of the JVM's state tables, and of the changes that they send and load as Arrow messages."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_SHIM: Final = "jvm-shim/src/main/scala/org/apache/spark/sql/statestore"
_TABLE: Final = f"{_SHIM}/table"
_ARROW: Final = f"{_SHIM}/arrow"
_TESTS: Final = "tests/spark"

_TRIAL: Final = f"{_TESTS}/test_state_table.py::test_table_equals_a_map_after_random_operations"
_FAMILIES: Final = f"{_TESTS}/test_provider_families.py"
_ORDER: Final = f"{_TESTS}/test_provider_family_order.py"
_LISTS_FEED: Final = f"{_TESTS}/test_change_feed.py::test_change_feed_of_lists_equals_rocksdbs"

_PRESSURE: Final = f"{_TESTS}/test_memory_pressure.py"

_GIVING_WAY: Final = (
    Mutant(
        "moved-page-is-read-at-its-address-in-the-heap",
        f"{_TABLE}/Log.scala",
        "    if (page != null) {\n      Platform.BYTE_ARRAY_OFFSET + (",
        "    if (page != null && offset < 0L) {\n      Platform.BYTE_ARRAY_OFFSET + (",
        (f"{_PRESSURE}::test_pages_move_to_files_under_readers_of_snapshots",),
        "A snapshot is uploaded as it was while its pages are moved to files.",
    ),
    Mutant(
        "earlier-snapshots-keep-moved-pages",
        f"{_TABLE}/Log.scala",
        "new ViewedPages(newPages, newAddresses) :: inViews.filter(_.isUsed)",
        "new ViewedPages(newPages, newAddresses) :: Nil",
        (f"{_PRESSURE}::test_moved_pages_leave_the_heap_while_snapshots_are_in_use",),
        "State that gives way frees heap at once, whichever versions are in memory.",
    ),
    Mutant(
        "state-of-a-running-task-is-moved",
        f"{_SHIM}/CheckpointStateStoreProvider.scala",
        "content != null && content.isIdle && content.moveToFiles()",
        "content != null && content.moveToFiles()",
        (f"{_PRESSURE}::test_state_leaves_the_heap_once_no_task_uses_it",),
        "No page moves under a task that reads and writes it.",
    ),
    Mutant(
        "memory-of-spark-is-ignored",
        f"{_SHIM}/provider/MemoryPressure.scala",
        "heap - math.max(Reserved, heap / ReservedPart) - spark",
        "heap - math.max(Reserved, heap / ReservedPart)",
        (f"{_PRESSURE}::test_available_heap_is_what_spark_and_others_leave",),
        "A cached table, a sort and state fit into the heap together.",
    ),
    Mutant(
        "other-objects-are-ignored",
        f"{_SHIM}/provider/MemoryPressure.scala",
        "math.min(beside, objects.bytesLeft(most))",
        "math.min(beside, most)",
        (f"{_TESTS}/test_heap_watch.py::test_state_gives_way_to_other_objects",),
        "State gives way to objects that Spark does not count.",
    ),
)

_INDEXES: Final = (
    Mutant(
        "hash-index-split-misplaces-keys",
        f"{_TABLE}/HashIndex.scala",
        "Record.OffsetBits + TagBits - low.depth) & 1L) == 0L",
        "Record.OffsetBits + TagBits - low.depth - 1) & 1L) == 0L",
        (f"{_TRIAL}[many rows-one value-heap]",),
        "Every key of a large state is found after a segment of its index was split.",
    ),
    Mutant(
        "hash-index-widen-loses-a-slot",
        f"{_TABLE}/HashIndex.scala",
        "while (i < slots) {\n      val entry = read(old.base",
        "while (i < slots - 1) {\n      val entry = read(old.base",
        (f"{_TRIAL}[many rows-one value-heap]",),
        "Every key of a growing state is found after its index was resized.",
    ),
    Mutant(
        "hash-index-removal-breaks-probes",
        f"{_TABLE}/HashIndex.scala",
        "if (((slot - home) & mask) >= ((slot - gap) & mask)) {",
        "if (((slot - home) & mask) > ((slot - gap) & mask)) {",
        (f"{_TESTS}/test_state_table.py::test_table_has_its_keys_after_a_rollback_of_many_others",),
        "Keys that collide with one that an abort removes from the index are still found.",
    ),
    Mutant(
        "hash-index-trusts-hashes",
        f"{_TABLE}/HashIndex.scala",
        "        records.hasKey(Record.offsetIn(entry), keyBase, keyOffset, keyLength)) {",
        "        records.keyLengthOf(Record.offsetIn(entry)) == keyLength) {",
        (f"{_TESTS}/test_state_table.py::test_table_has_a_row_for_each_key_whose_hashes_agree",),
        "Two keys whose hashes agree have a row each.",
    ),
    Mutant(
        "prefix-group-of-one-key-is-lost",
        f"{_TABLE}/PrefixGroups.scala",
        "if (!met) members(count) = first",
        "if (!met && count > 0) members(count) = first",
        (f"{_FAMILIES}::test_prefix_can_be_empty_or_null[ours]",),
        "A prefix scan returns the row of a prefix that has only one.",
    ),
    Mutant(
        "prefix-of-null-is-empty",
        f"{_TABLE}/PrefixGroups.scala",
        "BoundReference(i, field.dataType, field.nullable)",
        "BoundReference(i, field.dataType, nullable = false)",
        (f"{_FAMILIES}::test_prefix_can_be_empty_or_null[ours]",),
        "A prefix that is null is another one than an empty text.",
    ),
    Mutant(
        "prefix-index-keeps-a-removed-row",
        f"{_TABLE}/StateTable.scala",
        "if (groups != null) groups.unlink(first)\n",
        "if (groups != null && hasLists) groups.unlink(first)\n",
        (f"{_TRIAL}[few keys-prefixes-heap]",),
        "A prefix scan returns no row that was removed.",
    ),
    Mutant(
        "ordered-tree-descends-beside-its-key",
        f"{_TABLE}/OrderedTree.scala",
        "if (compare(node, middle, word, base, key, length) <= 0) low = middle + 1 else high = middle",
        "if (compare(node, middle, word, base, key, length) < 0) low = middle + 1 else high = middle",
        (f"{_TESTS}/test_state_table.py::test_ordered_table_has_each_key_once",),
        "A timer beyond the first few dozen is in the order once, and can be removed.",
    ),
    Mutant(
        "ordered-tree-snapshot-is-written-to",
        f"{_TABLE}/OrderedTree.scala",
        "def snapshot(): Snapshot = {\n    owner = new Object",
        "def snapshot(): Snapshot = {\n    owner = root.owner",
        (f"{_FAMILIES}::test_abort_restores_families_and_rows[ours]",),
        "An aborted batch leaves the order of timers as it was.",
    ),
    Mutant(
        "key-order-nulls-first",
        f"{_TABLE}/KeyOrder.scala",
        "java.lang.Boolean.compare(aNull, bNull)",
        "java.lang.Boolean.compare(bNull, aNull)",
        (f"{_ORDER}::test_range_order_of_every_type_equals_rocksdb",),
        "Range scans have nulls last, in each ordering column.",
    ),
    Mutant(
        "key-order-negative-doubles-reversed",
        f"{_TABLE}/KeyOrder.scala",
        "bits ^ ((bits >> 63) & Long.MaxValue)",
        "bits",
        (f"{_ORDER}::test_range_order_of_every_type_equals_rocksdb",),
        "Range scans have negative floating point numbers in ascending order.",
    ),
)

_SCANS: Final = (
    Mutant(
        "range-scan-includes-its-end",
        f"{_TABLE}/TableScans.scala",
        "      range(first, last, through = false, everyValue)",
        "      range(first, last, through = true, everyValue)",
        (f"{_ORDER}::test_range_scan_is_half_open[ours]",),
        "A range scan ends before its end: no timer fires early, and no state expires early.",
    ),
    Mutant(
        "range-scan-of-a-key-includes-its-end",
        f"{_TABLE}/TableScans.scala",
        "else first, last, through = false, everyValue)",
        "else first, last, through = true, everyValue)",
        (f"{_ORDER}::test_timestamp_order_is_signed[ours-events]",),
        "A range scan between two times of one key ends before the second one.",
    ),
    Mutant(
        "range-scan-sees-later-writes",
        f"{_TABLE}/TableScans.scala",
        "else new OrderedTree.Cursor(tree.snapshot(), view, header, start, end, through),",
        "else new OrderedTree.Cursor(tree.current, view, header, start, end, through),",
        (f"{_FAMILIES}::test_timer_scan_excludes_timers_set_meanwhile",),
        "A scan of many timers is a snapshot: timers that fire and set others are each seen once.",
    ),
    Mutant(
        "reusable-scan-does-not-seek",
        "jvm-shim/src/main/spark-since-4.3/org/apache/spark/sql/statestore/provider/SeekingIterator.scala",
        "rows = scanFrom(Some(prefixRow))",
        "rows = scanFrom(None)",
        (f"{_FAMILIES}::test_reusable_iterator_sees_writes_before_each_seek[ours]",),
        "Spark's reusable iterator starts at the prefix that it seeks.",
    ),
    Mutant(
        "log-scan-drops-the-row-superseded-first",
        f"{_TABLE}/Log.scala",
        "val by = deadAt\n    by == Record.None || by >= view.end\n",
        "val by = deadAt\n    by == Record.None || by > view.end\n",
        (f"{_TRIAL}[few keys-one value-heap]",),
        "A snapshot has the row that the first write after it replaces.",
    ),
    Mutant(
        "iterator-sees-the-next-merged-value",
        f"{_TABLE}/TableIterators.scala",
        "if (next < view.end) next else Record.None",
        "if (next <= view.end) next else Record.None",
        (f"{_TRIAL}[few keys-lists-heap]",),
        "An iterator returns no value that was merged after it was opened.",
    ),
    Mutant(
        "slice-removes-a-key-that-did-not-exist",
        f"{_TABLE}/Log.scala",
        "while (old >= tail) old = Record.offsetIn(linkOf(old))",
        "while (old > tail) old = Record.offsetIn(linkOf(old))",
        (f"{_TRIAL}[few keys-one value-heap]",),
        "The changes of a version have no removal of a key that was put and removed in it.",
    ),
)

_ROWS: Final = (
    Mutant(
        "put-of-the-last-value-keeps-the-list",
        f"{_TABLE}/StateTable.scala",
        "val isSame = first != Record.None && first == old &&",
        "val isSame = first != Record.None &&",
        (f"{_FAMILIES}::test_put_replaces_a_list_by_its_last_value[ours]",),
        "A put replaces all values of a key, also by the one that was merged last.",
    ),
    Mutant(
        "rollback-leaves-rows-superseded",
        f"{_TABLE}/StateTable.scala",
        "records.setDeadAt(value, Record.None)",
        "records.setDeadAt(value, at)",
        (f"{_TRIAL}[few keys-one value-heap]",),
        "Rows that an aborted batch changed are in scans and snapshots again.",
    ),
    Mutant(
        "rollback-keeps-the-count",
        f"{_TABLE}/StateTable.scala",
        "      keys = snapshot.keys\n",
        "      keys = math.max(keys, snapshot.keys)\n",
        (f"{_TRIAL}[few keys-one value-heap]",),
        "The number of rows is exact after an aborted batch.",
    ),
    Mutant(
        "rollback-reopens-the-same-page",
        f"{_TABLE}/Log.scala",
        "enter(newLast, reopened, sizes(newLast))",
        "enter(newLast, new Block(pages(newLast), addresses(newLast)), sizes(newLast))",
        (f"{_TESTS}/test_state_table.py::test_table_stays_small_when_a_batch_writes_few_keys_often",),
        "A row that an operator holds keeps its bytes when the batch's part of the log is rewritten.",
    ),
    Mutant(
        "rollback-keeps-marks-of-mapped-pages",
        f"{_TABLE}/Log.scala",
        "if (marks(page) != null) marks(page)(slotOf(offset, smallest)) = 0",
        "if (marks(page) != null && pages(page) != null) marks(page)(slotOf(offset, smallest)) = 0",
        (f"{_TRIAL}[many rows-one value-moved pages]",),
        "Rows beyond the heap limit that an aborted batch changed are in scans again.",
    ),
    Mutant(
        "batch-rewrite-forgets-removals",
        f"{_TABLE}/BatchLog.scala",
        "if (kind == Record.Tombstone || startsList) table.remove(",
        "if (startsList) table.remove(",
        (f"{_TESTS}/test_state_table.py::test_table_stays_small_when_a_batch_writes_few_keys_often",),
        "A row that a batch removes stays removed when the batch's part of the log is rewritten.",
    ),
    Mutant(
        "batch-rewrite-moves-rows-of-iterators",
        f"{_TABLE}/BatchLog.scala",
        "if (tail > startTail) isFixed = true",
        "if (tail > startTail + mostGarbage) isFixed = true",
        (f"{_TRIAL}[few keys-one value-heap]",),
        "An iterator keeps its rows when a batch writes one key again and again.",
    ),
    Mutant(
        "compaction-is-never-due",
        f"{_TABLE}/StateTable.scala",
        "total > StateTable.SmallestCompaction && total > 2 * (live + groupBytes)",
        "total > StateTable.SmallestCompaction && total > 200 * (live + groupBytes)",
        (f"{_TESTS}/test_provider_scenarios.py::test_compaction_frees_memory",),
        "State that is updated again and again takes no more than a few times its size.",
    ),
    Mutant(
        "compaction-loses-updates-since-it-began",
        f"{_TABLE}/TableCompaction.scala",
        "val changes = from.scan(from.records.log.view, view.end)",
        "val changes = from.scan(view, view.end)",
        (f"{_TRIAL}[few keys-one value-heap]",),
        "Updates during a compaction in the background are not lost when its copy replaces the log.",
    ),
)

_MEMORY: Final = (
    Mutant(
        "lease-ends-during-a-read",
        f"{_TABLE}/RetiredMemory.scala",
        "if (pins.get == 0) end.clean()",
        "end.clean()",
        (f"{_TESTS}/test_state_table.py::test_table_memory_is_freed_under_concurrent_readers",),
        "A file of rows is not unmapped while another thread of the task reads it.",
    ),
    Mutant(
        "mapped-memory-freed-while-leased",
        f"{_TABLE}/RetiredMemory.scala",
        "private def unmapIfQuiescent(): Unit = if (leases == 0) {",
        "private def unmapIfQuiescent(): Unit = if (leases >= 0) {",
        (f"{_TESTS}/test_state_table.py::test_mapped_memory_is_freed_when_its_last_task_ends",),
        "Files of rows stay mapped while a store or an iterator may read them.",
    ),
    Mutant(
        "row-refers-to-a-mapped-page",
        f"{_TABLE}/TableIterators.scala",
        "if (page != null) row.pointTo(page, address, length) else copy(address, length)",
        "row.pointTo(page, address, length)",
        (f"{_TRIAL}[few keys-one value-files]",),
        "A row that an operator keeps is valid when the file that it came from is unmapped.",
    ),
    Mutant(
        "freed-pages-count-as-heap",
        f"{_TABLE}/TableMemory.scala",
        "if (base != null) account.takeForPages(-bytes)",
        "if (base == null) account.takeForPages(-bytes)",
        (f"{_TESTS}/test_state_table.py::test_table_stays_small_when_a_batch_writes_few_keys_often",),
        "State that is freed counts no more towards maxHeapBytes.",
    ),
    Mutant(
        "mapped-files-stay-behind",
        f"{_TABLE}/TableMemory.scala",
        "        Files.delete(path)\n",
        "        path.toFile.deleteOnExit()\n",
        (f"{_TESTS}/test_state_table.py::test_mapped_memory_is_freed_when_its_last_task_ends",),
        "State beyond the heap limit leaves no files behind when an executor is killed.",
    ),
)

_MESSAGES: Final = (
    Mutant(
        "load-restores-removed-rows",
        f"{_TABLE}/TableLoad.scala",
        "removed.putIfNew(hash, null, key, length, null, 0L, 0)",
        "removed.newestOf(hash, null, key, length)",
        (f"{_TESTS}/test_cold_loads.py::test_cold_load_returns_the_committed_rows[files]",),
        "A row that was removed does not come back when the state is loaded.",
    ),
    Mutant(
        "checksum-of-a-file-not-verified",
        f"{_ARROW}/MessageSource.scala",
        'if (checksum.getValue != stream.path("checksum").asLong) {',
        'if (!stream.path("checksum").isNumber) {',
        (f"{_TESTS}/test_damage.py::test_load_verifies_files_that_the_reader_thread_reads",),
        "A load fails if a byte of its files has changed.",
    ),
    Mutant(
        "merged-list-keeps-removed-values",
        f"{_ARROW}/ChangeBatch.scala",
        "(records.isAlive || records.precedesMerge) && existed(records)",
        "records.isAlive && existed(records)",
        (f"{_LISTS_FEED}[delta-merge to a removed key]",),
        "A list that is removed and merged to in one batch has the new values alone after a restart.",
    ),
    Mutant(
        "merges-are-sent-as-puts",
        f"{_ARROW}/ChangeBatch.scala",
        "if (filling.isMerge) Merge else Put",
        "if (filling.precedesMerge) Merge else Put",
        (f"{_LISTS_FEED}[delta-merge to a key]",),
        "Values that are merged to a list are added to those before after a restart.",
    ),
    Mutant(
        "validity-of-a-single-removal-missing",
        f"{_ARROW}/ChangeBatch.scala",
        "if (nulls > 0) {",
        "if (nulls > 1) {",
        (f"{_TESTS}/test_change_layouts.py",),
        "State is read without Spark when a version removed one row.",
    ),
    Mutant(
        "messages-of-any-size",
        f"{_ARROW}/ChangeBatch.scala",
        "while (!measured && rows < mostRows && keyBytes + valueBytes < mostBytes) {",
        "while (!measured && rows < mostRows) {",
        (f"{_TESTS}/test_change_layouts.py::test_commit_writes_messages_of_a_few_mebibytes",),
        "A commit needs memory for messages of a few MiB, not for all of its changes at once.",
    ),
    Mutant(
        "decoder-trusts-the-last-offset",
        f"{_ARROW}/StoredMessage.scala",
        "if (last > bytes) throw malformed(",
        "if (last < 0) throw malformed(",
        (f"{_TESTS}/test_change_layouts.py::test_decode_rejects_a_last_offset_behind_its_buffer",),
        "A damaged message is refused before memory beyond it is read as a row.",
    ),
)

MUTANTS: Final = (*_GIVING_WAY, *_INDEXES, *_SCANS, *_ROWS, *_MEMORY, *_MESSAGES)
