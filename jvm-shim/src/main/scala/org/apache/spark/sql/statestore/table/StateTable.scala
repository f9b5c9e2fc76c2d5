package org.apache.spark.sql.statestore.table

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.unsafe.Platform

/** The content of a table at one moment, which `rollbackTo` restores. */
private[statestore] final class TableSnapshot(
    val view: LogView, val keys: Long, val values: Long, val liveBytes: Long, val order: OrderedTree.Snapshot) {

  def tail: Long = view.end
}

/**
 * The rows of one column family: a log of immutable records and a hash index to the newest record of
 * each key, with a prefix index or an ordered index if the key encoder needs one. Several values of a key
 * are a linked list of records.
 *
 * Guarantees:
 *  - a version is an offset, the `tail` at its commit; `rollbackTo` returns to it exactly;
 *  - the changes since a version are the log after its offset;
 *  - a returned row stays valid, whatever is put, removed, rolled back, compacted or unmapped later;
 *  - an iterator is a snapshot of its creation;
 *  - compaction does not block batches: another thread copies the live records, and between batches the
 *    records since are added and the copy is swapped in;
 *  - putting the value that a key already has is no change;
 *  - the changes since the last snapshot take about twice what they leave, unless an iterator has seen them, however
 *    often they supersede each other.
 *
 * Not thread-safe: one thread writes, and nothing else uses the table meanwhile. While none writes, any number of
 * threads may read, each with rows of its own: no method that reads changes what another one uses. Another thread may
 * read a `snapshot` that was safely published to it at any time.
 *
 * @param hasLists  whether a key may have several values
 * @param keyHash   hash of the keys
 * @param memory    allocates the rows and the index
 */
private[statestore] final class StateTable(
    val keyFields: Int,
    val valueFields: Int,
    val hasLists: Boolean = false,
    private[table] val prefix: Option[PrefixProjection] = None,
    order: Option[KeyOrder] = None,
    val keyHash: KeyHash = KeyHash.ofProcess,
    memory: TableMemory = new TableMemory) extends ChangeSink with TableScans {

  private[table] var records = new Records(
    memory, math.min(keyFields, prefix.map(_.columns).getOrElse(keyFields)), prefix.isDefined, hasLists, keyHash)
  private[table] val header = records.header
  private[table] var index = new HashIndex(records)
  private[table] var groups = prefix.map(new PrefixGroups(records, _)).orNull
  private[table] var tree = order.map(new OrderedTree(records, _)).orNull
  private[table] var keys = 0L
  private[table] var values = 0L
  private[table] var live = 0L
  private[table] var groupBytes = 0L
  private[table] var total = 0L
  private[table] val batch = new BatchLog(this)
  private var replaced = List.empty[TableMemory]
  private var compaction: TableCompaction = _

  def isOrdered: Boolean = tree != null

  def scansPrefixes: Boolean = groups != null || tree != null && tree.order.scansPrefixes

  /** Keys in the table. */
  def numKeys: Long = keys

  /** Values of all keys. */
  def numValues: Long = values

  /** Size of log and indexes, in the heap and in files, in bytes. */
  def memoryBytes: Long =
    records.log.heldBytes + index.memoryBytes + (if (groups == null) 0L else groups.memoryBytes) +
      (if (tree == null) 0L else tree.memoryBytes)

  /** Size of the live records, headers included, in bytes. */
  def liveBytes: Long = live

  /** The offset after the last record. */
  def tail: Long = records.log.tail

  /** Returns the present content. */
  def snapshot(): TableSnapshot = {
    batch.requireComplete()
    val snapshot = content
    batch.begin(snapshot)
    snapshot
  }

  private def content: TableSnapshot =
    new TableSnapshot(records.log.view, keys, values, live, if (tree == null) null else tree.snapshot())

  def scan(view: LogView, from: Long = Log.FirstOffset): LogScan =
    new LogScan(view, header, if (hasLists) records.head else LogScan.NoLists, from)

  /** Returns a row for the values that `get` returns. */
  def newRow(): RowView = new RowView(valueFields)

  /** Points a row of `newRow` at the first value of the key and returns it; null if the key has none. */
  def get(key: UnsafeRow, into: RowView): UnsafeRow = {
    val first = records.firstOf(newestOf(key))
    if (first == Record.None) {
      null
    } else {
      val page = records.log.page(first)
      val record = records.log.address(page, first)
      into.pointTo(page, record + header + Record.keyLength(Platform.getLong(page, record + Record.Link)),
        Record.valueLength(Platform.getLong(page, record + Record.Dead)))
    }
  }

  def contains(key: UnsafeRow): Boolean = records.isLive(newestOf(key))

  /** Returns all values of the key, in the order in which they were appended. */
  def valuesOf(key: UnsafeRow): Iterator[UnsafeRow] =
    new ValuesIterator(
      records.firstOf(newestOf(key)), viewToScan(), header, records.more, newRow())

  /** Returns a view for an iterator. */
  private[table] def viewToScan(): LogView = {
    batch.markRead(tail)
    records.log.view
  }

  /** Replaces all values of the key by this one. */
  def put(key: UnsafeRow, value: UnsafeRow): Unit =
    put(key.getBaseObject, key.getBaseOffset, key.getSizeInBytes,
      value.getBaseObject, value.getBaseOffset, value.getSizeInBytes)

  def put(
      keyBase: Object, keyOffset: Long, keyLength: Int,
      valueBase: Object, valueOffset: Long, valueLength: Int): Unit = {
    batch.rewriteIfWanted()
    replace(keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
  }

  // Returns the offset of the key's only record.
  private def replace(
      keyBase: Object, keyOffset: Long, keyLength: Int,
      valueBase: Object, valueOffset: Long, valueLength: Int): Long = {
    val hash = keyHash(keyBase, keyOffset, keyLength)
    val slot = index.find(hash, keyBase, keyOffset, keyLength)
    val old = if (slot < 0) Record.None else index.offsetAt(slot)
    val first = records.firstOf(old)
    val isSame = first != Record.None && first == old &&
      records.hasValue(old, valueBase, valueOffset, valueLength)
    if (isSame) {
      old
    } else {
      // The group precedes its first member in the log, so that it is undone after it.
      val group = if (groups == null || first != Record.None) Record.None else groupOf(keyBase, keyOffset, keyLength)
      // Allocations that may fail come before the append, so that every record in the log is in the index.
      val position = if (slot < 0) index.roomAt(~slot, hash) else slot
      val at = append(Record.Row, old, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
      if (slot < 0) index.insertAt(position, hash, at) else index.replaceAt(position, at)
      if (first != Record.None) {
        supersede(first, at)
        if (groups != null) groups.substitute(first, at)
      } else {
        keys += 1
        if (groups != null) groups.link(group, at)
        if (old != Record.None) {
          records.setDeadAt(old, at)
          batch.superseded(old)
        }
      }
      if (tree != null) tree.put(at)
      live += header + keyLength + valueLength
      values += 1
      at
    }
  }

  /** Appends a value to those of the key. */
  def merge(key: UnsafeRow, value: UnsafeRow): Unit =
    merge(key.getBaseObject, key.getBaseOffset, key.getSizeInBytes,
      value.getBaseObject, value.getBaseOffset, value.getSizeInBytes)

  def merge(
      keyBase: Object, keyOffset: Long, keyLength: Int,
      valueBase: Object, valueOffset: Long, valueLength: Int): Unit = {
    if (!hasLists) throw new IllegalStateException("merge needs a column family with several values per key")
    batch.rewriteIfWanted()
    val hash = keyHash(keyBase, keyOffset, keyLength)
    val slot = index.find(hash, keyBase, keyOffset, keyLength)
    val last = if (slot < 0) Record.None else index.offsetAt(slot)
    val first = records.firstOf(last)
    if (first == Record.None) {
      records.setMerged(replace(keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength))
    } else {
      val at = append(Record.Append, last, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
      records.chain(first, last, at)
      index.replaceAt(slot, at)
      live += records.sizeOf(at)
      values += 1
    }
  }

  def remove(key: UnsafeRow): Unit =
    remove(key.getBaseObject, key.getBaseOffset, key.getSizeInBytes)

  def remove(keyBase: Object, keyOffset: Long, keyLength: Int): Unit = {
    batch.rewriteIfWanted()
    val hash = keyHash(keyBase, keyOffset, keyLength)
    val slot = index.find(hash, keyBase, keyOffset, keyLength)
    val old = if (slot < 0) Record.None else index.offsetAt(slot)
    val first = records.firstOf(old)
    if (first != Record.None) {
      val at = append(Record.Tombstone, old, keyBase, keyOffset, keyLength, null, 0L, 0)
      supersede(first, at)
      keys -= 1
      if (groups != null) groups.unlink(first)
      if (tree != null) tree.remove(first)
      index.replaceAt(slot, at)
    }
  }

  /** Removes the keys from `start` (inclusive) to `end` (exclusive). */
  def removeRange(start: UnsafeRow, end: UnsafeRow): Unit = {
    val rows = rangeScan(Some(start), Some(end))
    while (rows.hasNext) remove(rows.next().key)
  }

  /** Restores a snapshot, undoing every later record, newest first. */
  def rollbackTo(snapshot: TableSnapshot): Unit = {
    if (compaction != null && snapshot.tail < compaction.startTail) dropCompaction()
    if (snapshot.tail < records.log.tail) {
      var offsets = new Array[Long](64)
      var count = 0
      val behind = scan(records.log.view, snapshot.tail)
      while (behind.advance()) {
        if (count == offsets.length) offsets = java.util.Arrays.copyOf(offsets, count * 2)
        offsets(count) = behind.offset
        count += 1
      }
      while (count > 0) {
        count -= 1
        undo(offsets(count))
      }
      records.log.truncate(snapshot.tail)
      keys = snapshot.keys
      values = snapshot.values
      if (tree != null) tree.restore(snapshot.order)
    }
    batch.begin(snapshot)
  }

  /**
   * Loads the index entry of a key into the processor's cache; returns the offset of a record that is likely
   * the key's, else `Record.None`.
   */
  private[table] def guess(hash: Int): Long = index.guess(hash)

  /** Loads the start of a record into the processor's cache. */
  private[table] def touch(at: Long): Int = {
    val page = records.log.page(at)
    Platform.getByte(page, records.log.address(page, at))
  }

  /** Returns the offset of the key's newest record, `Record.None` if it has none. */
  private[table] def newestOf(hash: Int, keyBase: Object, keyOffset: Long, keyLength: Int): Long =
    index.lookup(hash, keyBase, keyOffset, keyLength)

  /** Puts a key if it has no record; returns the offset of its newest record, `Record.None` if it had none. */
  private[table] def putIfNew(
      hash: Int,
      keyBase: Object, keyOffset: Long, keyLength: Int,
      valueBase: Object, valueOffset: Long, valueLength: Int): Long = {
    val position = index.find(hash, keyBase, keyOffset, keyLength)
    if (position >= 0) {
      index.offsetAt(position)
    } else {
      val at = appendRow(keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
      index.insert(hash, at)
      Record.None
    }
  }

  /** Appends the row of a key that has no record; returns its index entry, which `insertNew` adds. */
  private[table] def putUnindexed(
      hash: Int,
      keyBase: Object, keyOffset: Long, keyLength: Int,
      valueBase: Object, valueOffset: Long, valueLength: Int): Long =
    HashIndex.entryOf(hash, appendRow(keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength))

  /** Adds an index entry of `putUnindexed`; false if the key has a record. */
  private[table] def insertNew(entry: Long): Boolean = index.insertNew(entry)

  private def appendRow(
      keyBase: Object, keyOffset: Long, keyLength: Int,
      valueBase: Object, valueOffset: Long, valueLength: Int): Long = {
    val group = if (groups == null) Record.None else groupOf(keyBase, keyOffset, keyLength)
    val at = append(Record.Row, Record.None, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
    if (groups != null) groups.link(group, at)
    if (tree != null) tree.put(at)
    keys += 1
    values += 1
    live += header + keyLength + valueLength
    at
  }

  /** Reserves room for so many rows before a load. */
  def reserve(rows: Long): Unit = index.reserve(rows)

  /** True if more than half of the log's bytes are superseded. */
  def wantsCompaction: Boolean =
    total > StateTable.SmallestCompaction && total > 2 * (live + groupBytes)

  /** True if compaction is urgent, or so small that it is done immediately. */
  def needsCompaction: Boolean =
    wantsCompaction && (total > 4 * (live + groupBytes) || total < StateTable.LargestImmediateCompaction)

  /** Rewrites the log with the live records. Offsets change: earlier snapshots become invalid. */
  def compact(): Unit = {
    dropCompaction()
    compaction = newCompaction()
    try compaction.run() catch {
      case e: Throwable =>
        dropCompaction()
        throw e
    }
    adoptCompaction()
  }

  /**
   * Begins a compaction and returns its copy phase, to be run on another thread. `adoptCompaction` then ends
   * it, unless the table was rolled back behind the present tail.
   */
  def beginCompaction(): Runnable = {
    dropCompaction()
    val begun = newCompaction()
    compaction = begun
    () => begun.run()
  }

  /** True if a compaction is in progress: one that has failed is not. */
  def isCompacting: Boolean = compaction != null && !compaction.hasFailed

  /** Swaps in the copy of a compaction; false if its copy phase has not completed. Offsets change as in `compact`. */
  def adoptCompaction(): Boolean =
    if (compaction == null || !compaction.isCopied) {
      false
    } else {
      val ready = compaction
      // Cleared first: if this fails, the next compaction starts from scratch.
      compaction = null
      val compacted = try ready.catchUp() catch {
        case e: Throwable =>
          ready.discard()
          throw e
      }
      replaced ::= records.log.memory
      records = compacted.records
      index = compacted.index
      groups = compacted.groups
      tree = compacted.tree
      keys = compacted.keys
      values = compacted.values
      live = compacted.live
      total = compacted.total
      groupBytes = compacted.groupBytes
      batch.end()
      true
    }

  // New records would reuse offsets that the running copy still reads.
  private def dropCompaction(): Unit = if (compaction != null) {
    compaction.discard()
    compaction = null
  }

  /** Moves parts of the index from files into heap that has become free, between batches. */
  def useFreedHeap(): Unit = {
    index.moveToHeap()
    if (groups != null) groups.moveToHeap()
  }

  /**
   * Moves some of the rows from the heap to files; false if there are none to move. Rows, scans and snapshots stay valid, and
   * other threads may read them meanwhile.
   *
   * @throws IOException  if the disk has no space
   */
  def moveToFiles(): Boolean = records.log.movePages()

  /** Returns the memory that compactions have replaced since the last call; rows and scans may still read it. */
  def takeReplacedMemory(): List[TableMemory] = {
    val memories = replaced
    replaced = Nil
    memories
  }

  /** Ends a compaction in progress; returns all memory of the table, to be closed when nothing reads it. */
  def takeMemory(): List[TableMemory] = {
    dropCompaction()
    records.log.memory :: takeReplacedMemory()
  }

  /** Frees the memory of a table that nothing else refers to. */
  def discard(): Unit = takeMemory().foreach(_.close())

  // The projection of prefixes reuses its row: the copy is made on another thread and needs its own.
  private def newCompaction(): TableCompaction = new TableCompaction(
    this, content, new StateTable(keyFields, valueFields, hasLists, prefix.map(_.copy()), order, keyHash))

  private def undo(at: Long): Unit = {
    val hash = records.hashOf(at)
    val old = records.prevOf(at)
    total -= records.sizeOf(at)
    records.kindOf(at) match {
      case Record.Group =>
        groupBytes -= records.sizeOf(at)
        groups.drop(hash, at)
      case Record.Row =>
        live -= records.sizeOf(at)
        if (groups != null) {
          if (records.isLive(old)) groups.relink(records.firstOf(old)) else groups.unlink(at)
        }
        revive(hash, at, old)
      case Record.Tombstone =>
        if (groups != null) groups.relink(records.firstOf(old))
        revive(hash, at, old)
      case Record.Append =>
        live -= records.sizeOf(at)
        records.unchain(old)
        index.replace(hash, at, old)
    }
  }

  // The ordered index and the counts are restored as a whole by rollbackTo.
  private def revive(hash: Int, at: Long, old: Long): Unit =
    if (old == Record.None) {
      index.remove(hash, at)
    } else {
      index.replace(hash, at, old)
      var value = records.firstOf(old)
      if (value == Record.None) records.setDeadAt(old, Record.None)
      while (value != Record.None) {
        records.setDeadAt(value, Record.None)
        live += records.sizeOf(value)
        value = records.following(value)
      }
    }

  // Marks all values of a key as superseded by a record.
  private def supersede(first: Long, by: Long): Unit = {
    var value = first
    while (value != Record.None) {
      records.setDeadAt(value, by)
      batch.superseded(value)
      live -= records.sizeOf(value)
      values -= 1
      value = records.following(value)
    }
  }

  private[table] def groupOf(keyBase: Object, keyOffset: Long, keyLength: Int): Long = {
    val prefixKey = groups.projection.prefixOf(keyBase, keyOffset, keyLength)
    val group = groups.find(prefixKey)
    if (group != Record.None) {
      group
    } else {
      val hash = keyHash(
        prefixKey.getBaseObject, prefixKey.getBaseOffset, prefixKey.getSizeInBytes)
      appendGroup(hash, prefixKey.getBaseObject, prefixKey.getBaseOffset, prefixKey.getSizeInBytes)
    }
  }

  private def appendGroup(hash: Int, base: Object, offset: Long, length: Int): Long = {
    val position = groups.room(hash)
    val at = append(Record.Group, Record.None, base, offset, length, null, 0L, 0)
    groupBytes += records.sizeOf(at)
    groups.add(position, hash, at)
    at
  }

  private[table] def append(
      kind: Int, prev: Long,
      keyBase: Object, keyOffset: Long, keyLength: Int,
      valueBase: Object, valueOffset: Long, valueLength: Int): Long = {
    val at = records.write(kind, prev, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
    total += header + keyLength + valueLength
    at
  }

  private[table] def newestOf(key: UnsafeRow): Long = {
    val base = key.getBaseObject
    val offset = key.getBaseOffset
    val length = key.getSizeInBytes
    index.lookup(keyHash(base, offset, length), base, offset, length)
  }
}

private[statestore] object StateTable {
  /** Below this many bytes a log is not worth compacting. */
  private final val SmallestCompaction = 2L * Log.PageBytes

  /** Below this many bytes compacting takes less than a millisecond. */
  private final val LargestImmediateCompaction = 8L * Log.PageBytes
}
