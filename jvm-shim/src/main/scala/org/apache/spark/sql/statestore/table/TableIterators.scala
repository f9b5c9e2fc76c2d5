package org.apache.spark.sql.statestore.table

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair
import org.apache.spark.unsafe.Platform

/** Reusable view of one record. */
private[statestore] final class LogRecord(header: Int) {
  var page: AnyRef = _
  private var position = 0L

  def pointTo(view: LogView, offset: Long): Unit = {
    page = view.page(offset)
    position = view.address(page, offset)
  }

  def keyLength: Int = Record.keyLength(long(Record.Link))
  def valueLength: Int = Record.valueLength(long(Record.Dead))
  def keyAddress: Long = position + header
  def valueAddress: Long = position + header + keyLength
  def long(field: Int): Long = Platform.getLong(page, position + field)
}

/**
 * Reusable row over bytes of a table. It belongs to one reader of the table.
 *
 * Guarantees: its bytes are in the heap: those in a mapped file are copied, so that a row, and a string or
 * array taken from it, stays valid after the file is unmapped. A copy is never overwritten; copies share arrays
 * of up to 64 KiB, so that few are allocated.
 */
private[statestore] final class RowView private[table] (fields: Int) {
  import RowView._

  private[table] val row = new UnsafeRow(fields)
  private var chunk: Array[Byte] = Array.emptyByteArray
  private var used = 0

  private[table] def pointTo(page: AnyRef, address: Long, length: Int): UnsafeRow = {
    if (page != null) row.pointTo(page, address, length) else copy(address, length)
    row
  }

  private def copy(address: Long, length: Int): Unit = {
    if (length > chunk.length - used) {
      chunk = new Array[Byte](math.max(length, math.min(math.max(2 * chunk.length, SmallestChunk), LargestChunk)))
      used = 0
    }
    val to = Platform.BYTE_ARRAY_OFFSET + used.toLong
    Platform.copyMemory(null, address, chunk, to, length.toLong)
    row.pointTo(chunk, to, length)
    used += length
  }
}

private object RowView {
  private final val SmallestChunk = 1 << 10
  private final val LargestChunk = 1 << 16
}

/** Cursor over the first records of keys: after `advance()` returned true, `offset` is one. */
private[table] trait RowCursor {
  def advance(): Boolean
  def offset: Long
}

/** Cursor over the keys that are alive at the end of a scan's view, in log order. */
private[table] final class LogCursor(scan: LogScan) extends RowCursor {
  private var exhausted = false

  override def offset: Long = scan.offset

  override def advance(): Boolean = {
    var hasRow = false
    while (!hasRow && !exhausted) {
      if (!scan.advance()) exhausted = true
      else hasRow = scan.kind == Record.Row && scan.isAlive
    }
    hasRow
  }
}

/** Cursor over given offsets. */
private[table] final class OffsetsCursor(offsets: Array[Long], count: Int) extends RowCursor {
  private var at = -1

  override def offset: Long = offsets(at)

  override def advance(): Boolean = {
    if (at < count) at += 1
    at < count
  }
}

/**
 * Iterator over the rows of a cursor, with all values of each key if `more` is set. The pair and its
 * rows are reused: a row is valid until the next call of `next`, also if its key is removed meanwhile.
 * Values that were appended after the view are not returned.
 *
 * @param more  position of the offset of the next value in a record, 0 for first values only
 */
private[table] final class RowIterator(
    cursor: RowCursor, view: LogView, header: Int, more: Int, key: RowView, value: RowView)
  extends Iterator[UnsafeRowPair] {

  private val pair = new UnsafeRowPair(key.row, value.row)
  private val record = new LogRecord(header)
  private var hasRow = false
  private var exhausted = false
  private var next_ = Record.None

  override def hasNext: Boolean = {
    if (!hasRow && !exhausted) {
      if (next_ != Record.None) {
        hasRow = true
      } else if (cursor.advance()) {
        next_ = cursor.offset
        hasRow = true
      } else {
        exhausted = true
      }
    }
    hasRow
  }

  override def next(): UnsafeRowPair = {
    if (!hasNext) throw new NoSuchElementException("no more rows in this scan")
    hasRow = false
    record.pointTo(view, next_)
    key.pointTo(record.page, record.keyAddress, record.keyLength)
    value.pointTo(record.page, record.valueAddress, record.valueLength)
    next_ = if (more == 0) Record.None else RowIterator.following(record, more, view)
    // Callers may have replaced the rows of the pair, as Spark's StateStoreSuite does.
    pair.withRows(key.row, value.row)
  }
}

private[table] object RowIterator {
  /** Returns the offset of the next value of a record's key in a view. */
  def following(record: LogRecord, more: Int, view: LogView): Long = {
    val next = record.long(more)
    if (next < view.end) next else Record.None
  }
}

/** Iterator over the values of one key, with the same reuse of rows. */
private[table] final class ValuesIterator(
    first: Long, view: LogView, header: Int, more: Int, value: RowView) extends Iterator[UnsafeRow] {

  private val record = new LogRecord(header)
  private var next_ = first

  override def hasNext: Boolean = next_ != Record.None

  override def next(): UnsafeRow = {
    if (!hasNext) throw new NoSuchElementException("no more values of this key")
    record.pointTo(view, next_)
    value.pointTo(record.page, record.valueAddress, record.valueLength)
    next_ = RowIterator.following(record, more, view)
    value.row
  }
}

/** Iterator over the values at given offsets, null for `Record.None`, with the same reuse of rows. */
private[table] final class FirstValuesIterator(
    offsets: Array[Long], view: LogView, header: Int, value: RowView) extends Iterator[UnsafeRow] {

  private val record = new LogRecord(header)
  private var at = 0

  override def hasNext: Boolean = at < offsets.length

  override def next(): UnsafeRow = {
    if (!hasNext) throw new NoSuchElementException("no more values of these keys")
    val offset = offsets(at)
    at += 1
    if (offset == Record.None) {
      null
    } else {
      record.pointTo(view, offset)
      value.pointTo(record.page, record.valueAddress, record.valueLength)
    }
  }
}
