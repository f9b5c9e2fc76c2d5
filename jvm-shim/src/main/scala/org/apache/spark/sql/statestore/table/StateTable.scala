package org.apache.spark.sql.statestore.table

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.array.ByteArrayMethods
import org.apache.spark.unsafe.hash.Murmur3_x86_32

/**
 * The live state of one column family: a log of immutable records and an index to the newest
 * record of each key.
 *
 * Guarantees:
 *  - a version is an offset: `tail` after a commit names it, `rollbackTo` returns to it exactly;
 *  - what changed since a version is the log behind its offset, so it costs what changed;
 *  - a row handed out stays as it was, whatever is put, removed, rolled back or compacted later;
 *  - an iterator sees the table as it was when the iterator was made, and nothing of later writes;
 *  - putting the value that a key already has changes nothing and is no change.
 *
 * Not thread-safe: its store lets one thread in at a time. `view` and what is read through it may
 * be used by another thread that received it safely.
 */
private[statestore] final class StateTable(
    val keyFields: Int,
    val valueFields: Int,
    prefix: Option[PrefixProjection]) {

  private val header = if (prefix.isDefined) Record.PrefixHeader else Record.PlainHeader
  private var log = new Log
  private var index = new HashIndex(log, header)
  private var groups = prefix.map(new PrefixGroups(log, _)).orNull
  private var keys = 0L
  private var live = 0L
  private var groupBytes = 0L
  private var total = 0L
  private val got = new UnsafeRow(valueFields)

  /** Rows in the table. */
  def numKeys: Long = keys

  /** Heap that the table holds: log pages and index, in bytes. */
  def memoryBytes: Long =
    log.heldBytes + index.memoryBytes + (if (groups == null) 0L else groups.memoryBytes)

  /** Bytes of the records that are not superseded, headers included. */
  def liveBytes: Long = live

  /** The offset that names the present content. */
  def tail: Long = log.tail

  /** A view that may be scanned later, on any thread. */
  def view: LogView = log.view

  def scan(of: LogView, from: Long = Log.FirstOffset): LogScan = new LogScan(of, header, from)

  /** The value of the key or null; the row is reused by the next call. */
  def get(key: UnsafeRow): UnsafeRow = {
    val slot = find(key)
    if (slot < 0) {
      null
    } else {
      val offset = index.offsetAt(slot)
      val page = log.page(offset)
      val record = Log.address(offset)
      if (Platform.getInt(page, record + Record.Kind) == Record.Tombstone) {
        null
      } else {
        val keyLength = Platform.getInt(page, record + Record.KeyLength)
        got.pointTo(page, record + header + keyLength,
          Platform.getInt(page, record + Record.ValueLength))
        got
      }
    }
  }

  def contains(key: UnsafeRow): Boolean = {
    val slot = find(key)
    slot >= 0 && kindOf(index.offsetAt(slot)) == Record.Row
  }

  def put(key: UnsafeRow, value: UnsafeRow): Unit =
    put(key.getBaseObject, key.getBaseOffset, key.getSizeInBytes,
      value.getBaseObject, value.getBaseOffset, value.getSizeInBytes)

  def put(
      keyBase: Object, keyOffset: Long, keyLength: Int,
      valueBase: Object, valueOffset: Long, valueLength: Int): Unit = {
    val hash = StateTable.hashOf(keyBase, keyOffset, keyLength)
    val slot = index.find(hash, keyBase, keyOffset, keyLength)
    val old = if (slot < 0) Record.None else index.offsetAt(slot)
    val overwrites = old != Record.None && kindOf(old) == Record.Row
    if (!(overwrites && hasValue(old, keyLength, valueBase, valueOffset, valueLength))) {
      // The group goes into the log first, so that it is taken back after its first member.
      val group = if (groups == null || overwrites) Record.None else groupOf(keyBase, keyOffset, keyLength)
      val at = append(hash, Record.Row, old, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
      live += sizeOf(at)
      if (slot < 0) index.insert(hash, at) else index.replaceAt(slot, at)
      if (overwrites) {
        live -= sizeOf(old)
        if (groups != null) groups.substitute(old, at)
      } else {
        keys += 1
        if (groups != null) groups.link(group, at)
      }
      if (old != Record.None) setDeadAt(old, at)
    }
  }

  def remove(key: UnsafeRow): Unit =
    remove(key.getBaseObject, key.getBaseOffset, key.getSizeInBytes)

  def remove(keyBase: Object, keyOffset: Long, keyLength: Int): Unit = {
    val hash = StateTable.hashOf(keyBase, keyOffset, keyLength)
    val slot = index.find(hash, keyBase, keyOffset, keyLength)
    if (slot >= 0 && kindOf(index.offsetAt(slot)) == Record.Row) {
      val old = index.offsetAt(slot)
      val at = append(hash, Record.Tombstone, old, keyBase, keyOffset, keyLength, null, 0L, 0)
      live -= sizeOf(old)
      keys -= 1
      if (groups != null) groups.unlink(old)
      index.replaceAt(slot, at)
      setDeadAt(old, at)
    }
  }

  /** Whether the key of a record had a row when the log ended at `mark`. */
  def existedAt(mark: Long, records: LogScan): Boolean = {
    var old = records.prev
    while (old >= mark) old = Platform.getLong(log.page(old), Log.address(old) + Record.Prev)
    old != Record.None && kindOf(old) == Record.Row
  }

  /** Every row, in append order, as of now. */
  def iterator(): Iterator[UnsafeRowPair] =
    new TableIterator(scan(view), new UnsafeRow(keyFields), new UnsafeRow(valueFields))

  /** The rows whose first columns are byte-equal to `prefixKey`, as of now. */
  def prefixScan(prefixKey: UnsafeRow): Iterator[UnsafeRowPair] = {
    if (groups == null) {
      throw new IllegalStateException("this column family has no prefix index")
    }
    val group = groups.find(prefixKey)
    if (group == Record.None || groups.next(group) == group) {
      Iterator.empty
    } else {
      // The ring changes under later writes, records do not: noting the offsets isolates the scan.
      var offsets = new Array[Long](4)
      var count = 0
      var member = groups.next(group)
      while (member != group) {
        if (count == offsets.length) offsets = java.util.Arrays.copyOf(offsets, count * 2)
        offsets(count) = member
        count += 1
        member = groups.next(member)
      }
      new OffsetsIterator(view, header, offsets, count,
        new UnsafeRow(keyFields), new UnsafeRow(valueFields))
    }
  }

  /** Returns to the content that had this tail, undoing every later record, newest first. */
  def rollbackTo(mark: Long): Unit = {
    if (mark < log.tail) {
      var offsets = new Array[Long](64)
      var count = 0
      val records = scan(view, mark)
      while (records.advance()) {
        if (count == offsets.length) offsets = java.util.Arrays.copyOf(offsets, count * 2)
        offsets(count) = records.offset
        count += 1
      }
      while (count > 0) {
        count -= 1
        undo(offsets(count))
      }
      log.truncate(mark)
    }
  }

  /** Makes room before a load of so many rows. */
  def reserve(rows: Long): Unit = index.reserve(math.min(rows, Int.MaxValue.toLong).toInt)

  /** Whether more than half of the log's bytes are superseded. */
  def wantsCompaction: Boolean =
    total > StateTable.SmallestCompaction && total > 2 * (live + groupBytes)

  /** Rewrites the log with what is alive. Offsets change: earlier tails name nothing any more. */
  def compact(): Unit = {
    val from = log
    val fromView = log.view
    val fromGroups = groups
    log = new Log
    index = new HashIndex(log, header)
    index.reserve(math.min(keys, Int.MaxValue.toLong).toInt)
    live = 0L
    total = 0L
    groupBytes = 0L
    if (fromGroups == null) {
      val records = scan(fromView)
      while (records.advance()) {
        if (records.kind == Record.Row && records.isAlive) copyRecord(records)
      }
    } else {
      groups = new PrefixGroups(log, fromGroups.projection)
      compactGroups(from, fromView, fromGroups)
    }
  }

  private def compactGroups(from: Log, fromView: LogView, fromGroups: PrefixGroups): Unit = {
    val heads = scan(fromView)
    val member = new LogRecord(header)
    while (heads.advance()) {
      if (heads.kind == Record.Group) {
        val oldGroup = heads.offset
        var at = fromGroups.next(oldGroup)
        if (at != oldGroup) {
          val group = appendGroup(heads.hash, heads.page, heads.keyAddress, heads.keyLength)
          while (at != oldGroup) {
            member.pointTo(from.page(at), Log.address(at))
            val copied = append(
              member.hash, Record.Row, Record.None,
              member.page, member.keyAddress, member.keyLength,
              member.page, member.valueAddress, member.valueLength)
            live += sizeOf(copied)
            index.insert(member.hash, copied)
            groups.link(group, copied)
            at = fromGroups.next(at)
          }
        }
      }
    }
  }

  private def copyRecord(records: LogScan): Unit = {
    val at = append(
      records.hash, Record.Row, Record.None,
      records.page, records.keyAddress, records.keyLength,
      records.page, records.valueAddress, records.valueLength)
    live += sizeOf(at)
    index.insert(records.hash, at)
  }

  private def undo(at: Long): Unit = {
    val page = log.page(at)
    val record = Log.address(at)
    val hash = Platform.getInt(page, record + Record.Hash)
    val old = Platform.getLong(page, record + Record.Prev)
    val overwrote = old != Record.None && kindOf(old) == Record.Row
    total -= sizeOf(at)
    Platform.getInt(page, record + Record.Kind) match {
      case Record.Group =>
        groupBytes -= sizeOf(at)
        groups.drop(hash, at)
      case Record.Row =>
        live -= sizeOf(at)
        if (overwrote) {
          if (groups != null) groups.relink(old)
          live += sizeOf(old)
        } else {
          if (groups != null) groups.unlink(at)
          keys -= 1
        }
        revive(hash, at, old)
      case Record.Tombstone =>
        if (groups != null) groups.relink(old)
        live += sizeOf(old)
        keys += 1
        revive(hash, at, old)
    }
  }

  private def revive(hash: Int, at: Long, old: Long): Unit =
    if (old == Record.None) {
      index.remove(hash, at)
    } else {
      index.replace(hash, at, old)
      setDeadAt(old, Record.None)
    }

  private def groupOf(keyBase: Object, keyOffset: Long, keyLength: Int): Long = {
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
    val at = append(hash, Record.Group, Record.None, base, offset, length, null, 0L, 0)
    groupBytes += sizeOf(at)
    groups.add(hash, at)
    at
  }

  private def append(
      hash: Int, kind: Int, prev: Long,
      keyBase: Object, keyOffset: Long, keyLength: Int,
      valueBase: Object, valueOffset: Long, valueLength: Int): Long = {
    if (header.toLong + keyLength + valueLength > StateTable.LargestRecord) {
      throw new IllegalArgumentException(
        s"a row of ${keyLength.toLong + valueLength} bytes is larger than one record may be")
    }
    val size = Record.align(header + keyLength + valueLength)
    val at = log.append(size)
    total += size
    val page = log.page(at)
    val record = Log.address(at)
    // Pages are reused after a rollback, so every field is written.
    Platform.putLong(page, record + Record.DeadAt, Record.None)
    Platform.putLong(page, record + Record.Prev, prev)
    Platform.putInt(page, record + Record.Hash, hash)
    Platform.putInt(page, record + Record.KeyLength, keyLength)
    Platform.putInt(page, record + Record.ValueLength, valueLength)
    Platform.putInt(page, record + Record.Kind, kind)
    Platform.copyMemory(keyBase, keyOffset, page, record + header, keyLength.toLong)
    if (valueLength > 0) {
      Platform.copyMemory(valueBase, valueOffset, page, record + header + keyLength, valueLength.toLong)
    }
    at
  }

  private def find(key: UnsafeRow): Int = {
    val length = key.getSizeInBytes
    val hash = StateTable.hashOf(key.getBaseObject, key.getBaseOffset, length)
    index.find(hash, key.getBaseObject, key.getBaseOffset, length)
  }

  private def hasValue(at: Long, keyLength: Int, base: Object, offset: Long, length: Int): Boolean = {
    val page = log.page(at)
    val record = Log.address(at)
    Platform.getInt(page, record + Record.ValueLength) == length &&
      ByteArrayMethods.arrayEquals(page, record + header + keyLength, base, offset, length.toLong)
  }

  private def kindOf(at: Long): Int = Platform.getInt(log.page(at), Log.address(at) + Record.Kind)

  private def setDeadAt(at: Long, dead: Long): Unit =
    Platform.putLong(log.page(at), Log.address(at) + Record.DeadAt, dead)

  private def sizeOf(at: Long): Int = {
    val page = log.page(at)
    val record = Log.address(at)
    Record.align(header + Platform.getInt(page, record + Record.KeyLength) +
      Platform.getInt(page, record + Record.ValueLength))
  }
}

private[statestore] object StateTable {
  private final val LargestRecord = Int.MaxValue - (1 << 20)

  /** Below this many bytes a log is not worth compacting. */
  private final val SmallestCompaction = 2L * Log.PageBytes

  // Not Spark's 42: rows were already spread over partitions by a hash with that seed.
  private final val Seed = 0x5ca1ab1e

  def hashOf(base: Object, offset: Long, length: Int): Int =
    if ((length & 7) == 0) Murmur3_x86_32.hashUnsafeWords(base, offset, length, Seed)
    else Murmur3_x86_32.hashUnsafeBytes(base, offset, length, Seed)
}
