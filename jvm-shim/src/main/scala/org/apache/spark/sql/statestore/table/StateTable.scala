package org.apache.spark.sql.statestore.table

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.unsafe.Platform

/** The content of a table at one moment, to return to. */
private[statestore] final class TableMark(
    val view: LogView, val keys: Long, val values: Long, val order: OrderedTree.Snapshot) {

  def tail: Long = view.end
}

/**
 * The live state of one column family: a log of immutable records and an index to the newest
 * record of each key; for prefix scans also the groups of keys, for range scans their order. Where a
 * key may have several values, its first one is a `Row` record, which names the next one, and
 * so on.
 *
 * Guarantees:
 *  - a version is an offset: `tail` after a commit names it, `rollbackTo` returns to it exactly;
 *  - what changed since a version is the log behind its offset, so it costs what changed;
 *  - a row handed out stays as it was, whatever is put, removed, rolled back or compacted later;
 *  - an iterator sees the table as it was when the iterator was made, and nothing of later writes;
 *  - compaction is part of no batch: a thread of its own copies what is alive, between batches what came
 *    since is added, and the copy takes the place;
 *  - putting the value that a key already has changes nothing and is no change.
 *
 * Not thread-safe: its store lets one thread in at a time. `mark` and what is read through it may
 * be used by another thread that received it safely.
 *
 * @param hasLists  whether a key may have several values
 */
private[statestore] final class StateTable(
    val keyFields: Int,
    val valueFields: Int,
    val hasLists: Boolean = false,
    prefix: Option[PrefixProjection] = None,
    order: Option[KeyOrder] = None) extends ChangeSink with TableScans {

  private[table] var records = new Records(new Log(new TableMemory), prefix.isDefined, hasLists)
  private[table] val header = records.header
  private[table] var index = new HashIndex(records)
  private[table] var groups = prefix.map(new PrefixGroups(records, _)).orNull
  private[table] var tree = order.map(new OrderedTree(records, _)).orNull
  private[table] var keys = 0L
  private[table] var values = 0L
  private[table] var live = 0L
  private var groupBytes = 0L
  private var total = 0L
  private val got = new UnsafeRow(valueFields)
  // The row that `get` gave last may lie in what was compacted.
  private[table] var retired: AnyRef = _
  private var compaction: TableCompaction = _

  def isOrdered: Boolean = tree != null

  def scansPrefixes: Boolean = groups != null || tree != null && tree.order.scansPrefixes

  /** Keys in the table. */
  def numKeys: Long = keys

  /** Values of all keys. */
  def numValues: Long = values

  /** Log pages and indexes, in bytes, in the heap and in files. */
  def memoryBytes: Long =
    records.log.heldBytes + index.memoryBytes + (if (groups == null) 0L else groups.memoryBytes) +
      (if (tree == null) 0L else tree.memoryBytes)

  /** Bytes of the records that are not superseded, headers included. */
  def liveBytes: Long = live

  /** The offset that names the present content. */
  def tail: Long = records.log.tail

  /** The present content. */
  def mark(): TableMark = new TableMark(records.log.view, keys, values, if (tree == null) null else tree.snapshot())

  def scan(of: LogView, from: Long = Log.FirstOffset): LogScan = new LogScan(of, header, from)

  /** The first value of the key or null; the row is reused by the next call. */
  def get(key: UnsafeRow): UnsafeRow = {
    val first = records.firstOf(newestOf(key))
    if (first == Record.None) {
      null
    } else {
      val page = records.log.page(first)
      val record = records.log.address(first)
      got.pointTo(page, record + header + Record.keyLength(Platform.getLong(page, record + Record.Link)),
        Record.valueLength(Platform.getLong(page, record + Record.Dead)))
      got
    }
  }

  def contains(key: UnsafeRow): Boolean = records.isLive(newestOf(key))

  /** All values of the key as of now, in the order in which they came. */
  def valuesOf(key: UnsafeRow): Iterator[UnsafeRow] =
    new ValuesIterator(records.firstOf(newestOf(key)), records.log.view, header, records.more, new UnsafeRow(valueFields))

  /** Gives the key this value alone. */
  def put(key: UnsafeRow, value: UnsafeRow): Unit =
    put(key.getBaseObject, key.getBaseOffset, key.getSizeInBytes,
      value.getBaseObject, value.getBaseOffset, value.getSizeInBytes)

  def put(
      keyBase: Object, keyOffset: Long, keyLength: Int,
      valueBase: Object, valueOffset: Long, valueLength: Int): Unit = {
    val hash = StateTable.hashOf(keyBase, keyOffset, keyLength)
    val slot = index.find(hash, keyBase, keyOffset, keyLength)
    val old = if (slot < 0) Record.None else index.offsetAt(slot)
    val first = records.firstOf(old)
    val isSame = first != Record.None && first == old &&
      records.hasValue(old, valueBase, valueOffset, valueLength)
    if (!isSame) {
      // The group goes into the log first, so that it is taken back after its first member.
      val group = if (groups == null || first != Record.None) Record.None else groupOf(keyBase, keyOffset, keyLength)
      // What may fail for want of memory comes before the record: what is in the log is in the index, too.
      val place = if (slot < 0) index.roomAt(~slot, hash) else slot
      val at = append(Record.Row, old, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
      if (slot < 0) index.insertAt(place, hash, at) else index.replaceAt(place, at)
      if (first != Record.None) {
        supersede(first, at)
        if (groups != null) groups.substitute(first, at)
      } else {
        keys += 1
        if (groups != null) groups.link(group, at)
        if (old != Record.None) records.setDeadAt(old, at)
      }
      if (tree != null) tree.put(at)
      live += header + keyLength + valueLength
      values += 1
    }
  }

  /** Gives the key one more value, after those that it has. */
  def add(key: UnsafeRow, value: UnsafeRow): Unit =
    add(key.getBaseObject, key.getBaseOffset, key.getSizeInBytes,
      value.getBaseObject, value.getBaseOffset, value.getSizeInBytes)

  def add(
      keyBase: Object, keyOffset: Long, keyLength: Int,
      valueBase: Object, valueOffset: Long, valueLength: Int): Unit = {
    if (!hasLists) throw new IllegalStateException("a key of this column family has one value")
    val hash = StateTable.hashOf(keyBase, keyOffset, keyLength)
    val slot = index.find(hash, keyBase, keyOffset, keyLength)
    val last = if (slot < 0) Record.None else index.offsetAt(slot)
    val first = records.firstOf(last)
    if (first == Record.None) {
      put(keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
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
    val hash = StateTable.hashOf(keyBase, keyOffset, keyLength)
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

  /** Removes the keys from `start` on and before `end`. */
  def removeRange(start: UnsafeRow, end: UnsafeRow): Unit = {
    val rows = rangeScan(Some(start), Some(end))
    while (rows.hasNext) remove(rows.next().key)
  }

  /** Whether the key of a record had a row when the log ended at `mark`. */
  def existedAt(mark: Long, scan: LogScan): Boolean = {
    var old = scan.prev
    while (old >= mark) old = records.prevOf(old)
    records.isLive(old)
  }

  /** Returns to a former content, undoing every later record, newest first. */
  def rollbackTo(mark: TableMark): Unit = {
    if (compaction != null && mark.tail < compaction.since) dropCompaction()
    if (mark.tail < records.log.tail) {
      var offsets = new Array[Long](64)
      var count = 0
      val behind = scan(records.log.view, mark.tail)
      while (behind.advance()) {
        if (count == offsets.length) offsets = java.util.Arrays.copyOf(offsets, count * 2)
        offsets(count) = behind.offset
        count += 1
      }
      while (count > 0) {
        count -= 1
        undo(offsets(count))
      }
      records.log.truncate(mark.tail)
      keys = mark.keys
      values = mark.values
      if (tree != null) tree.restore(mark.order)
    }
  }

  /**
   * Looks where a lookup of the key looks at first, which brings that into the processor's cache.
   * Gives the offset of a record that may well be the key's, else `Record.None`.
   */
  private[table] def guess(hash: Int): Long = index.guess(hash)

  /** Brings the start of a record into the processor's cache. */
  private[table] def touch(at: Long): Int = Platform.getByte(records.log.page(at), records.log.address(at))

  /** The offset of the key's newest record, `Record.None` if it has none. */
  private[table] def newestOf(hash: Int, keyBase: Object, keyOffset: Long, keyLength: Int): Long =
    index.lookup(hash, keyBase, keyOffset, keyLength)

  /** Puts a key if it has no record; gives the offset of its newest one before, `Record.None` if it had none. */
  private[table] def putIfNew(
      hash: Int,
      keyBase: Object, keyOffset: Long, keyLength: Int,
      valueBase: Object, valueOffset: Long, valueLength: Int): Long = {
    val place = index.find(hash, keyBase, keyOffset, keyLength)
    if (place >= 0) {
      index.offsetAt(place)
    } else {
      val at = appendRow(keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
      index.insert(hash, at)
      Record.None
    }
  }

  /** Adds the row of a key that has no record, but for its entry in the index: that is given, for `insertNew`. */
  private[table] def putUnindexed(
      hash: Int,
      keyBase: Object, keyOffset: Long, keyLength: Int,
      valueBase: Object, valueOffset: Long, valueLength: Int): Long =
    HashIndex.entryOf(hash, appendRow(keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength))

  /** Adds an entry that `putUnindexed` gave; false if the key has a record. */
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

  /** Makes room before a load of so many rows. */
  def reserve(rows: Long): Unit = index.reserve(rows)

  /** Whether more than half of the log's bytes are superseded. */
  def wantsCompaction: Boolean =
    total > StateTable.SmallestCompaction && total > 2 * (live + groupBytes)

  /** Whether compaction should come first: so much is superseded, or there is so little to do. */
  def needsCompaction: Boolean =
    wantsCompaction && (total > 4 * (live + groupBytes) || total < StateTable.LargestAtOnce)

  /** Rewrites the log with what is alive. Offsets change: earlier marks name nothing any more. */
  def compact(): Unit = {
    dropCompaction()
    compaction = newCompaction()
    compaction.run()
    adoptCompaction()
  }

  /**
   * Begins to compact, and returns what is to be run on another thread. After that `adoptCompaction` ends it,
   * unless the table went back behind where it was now.
   */
  def beginCompaction(): Runnable = {
    dropCompaction()
    val begun = newCompaction()
    compaction = begun
    () => begun.run()
  }

  /** Whether a compaction was begun that has not ended. */
  def isCompacting: Boolean = compaction != null

  /** Ends a compaction that was run; false if it has not come that far. Offsets change as in `compact`. */
  def adoptCompaction(): Boolean =
    if (compaction == null || !compaction.isCopied) {
      false
    } else {
      val ready = compaction
      // If it fails, the next one starts anew.
      compaction = null
      val made = ready.catchUp()
      retired = records.log.memory.keeper
      records = made.records
      index = made.index
      groups = made.groups
      tree = made.tree
      keys = made.keys
      values = made.values
      live = made.live
      total = made.total
      groupBytes = made.groupBytes
      true
    }

  // Records would come to lie where it takes others to be.
  private def dropCompaction(): Unit = if (compaction != null) {
    compaction.stop()
    compaction = null
  }

  // What projects and orders has rows that it uses again: the copy, made on another thread, has its own.
  private def newCompaction(): TableCompaction = new TableCompaction(
    this, new StateTable(keyFields, valueFields, hasLists, prefix.map(_.copy()), order.map(_.copy())))

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

  // The order and the counts come back as a whole.
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

  // All values of a key make room for a record.
  private def supersede(first: Long, by: Long): Unit = {
    var value = first
    while (value != Record.None) {
      records.setDeadAt(value, by)
      live -= records.sizeOf(value)
      values -= 1
      value = records.following(value)
    }
  }

  private[table] def groupOf(keyBase: Object, keyOffset: Long, keyLength: Int): Long = {
    val prefixKey = groups.projection.of(keyBase, keyOffset, keyLength)
    val known = groups.find(prefixKey)
    if (known != Record.None) {
      known
    } else {
      val hash = StateTable.hashOf(
        prefixKey.getBaseObject, prefixKey.getBaseOffset, prefixKey.getSizeInBytes)
      appendGroup(hash, prefixKey.getBaseObject, prefixKey.getBaseOffset, prefixKey.getSizeInBytes)
    }
  }

  private def appendGroup(hash: Int, base: Object, offset: Long, length: Int): Long = {
    val place = groups.room(hash)
    val at = append(Record.Group, Record.None, base, offset, length, null, 0L, 0)
    groupBytes += records.sizeOf(at)
    groups.add(place, hash, at)
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

  private def newestOf(key: UnsafeRow): Long = {
    val base = key.getBaseObject
    val offset = key.getBaseOffset
    val length = key.getSizeInBytes
    index.lookup(StateTable.hashOf(base, offset, length), base, offset, length)
  }
}

private[statestore] object StateTable {
  /** Below this many bytes a log is not worth compacting. */
  private final val SmallestCompaction = 2L * Log.PageBytes

  /** Below this many bytes compacting takes less than a millisecond. */
  private final val LargestAtOnce = 8L * Log.PageBytes

  def hashOf(base: Object, offset: Long, length: Int): Int = Words.hash(base, offset, length)
}
