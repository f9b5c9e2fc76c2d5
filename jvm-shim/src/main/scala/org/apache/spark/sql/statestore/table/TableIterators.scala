package org.apache.spark.sql.statestore.table

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair
import org.apache.spark.unsafe.Platform

/** One record at a known place; reused by pointing it elsewhere. */
private[statestore] final class LogRecord(header: Int) {
  var page: AnyRef = _
  private var position = 0L

  def pointTo(view: LogView, offset: Long): Unit = {
    page = view.page(offset)
    position = view.address(offset)
  }

  def keyLength: Int = Record.keyLength(long(Record.Link))
  def valueLength: Int = Record.valueLength(long(Record.Dead))
  def keyAddress: Long = position + header
  def valueAddress: Long = position + header + keyLength
  def hash: Int = StateTable.hashOf(page, keyAddress, keyLength)
  def long(field: Int): Long = Platform.getLong(page, position + field)
}

/** Walks the first record of each of some keys: after `advance()` returned true, `offset` is one. */
private[table] trait RowCursor {
  def advance(): Boolean
  def offset: Long
}

/** The keys that were alive at the end of a scan's view, in append order. */
private[table] final class LogCursor(scan: LogScan) extends RowCursor {
  private var exhausted = false

  override def offset: Long = scan.offset

  override def advance(): Boolean = {
    var found = false
    while (!found && !exhausted) {
      if (!scan.advance()) exhausted = true
      else found = scan.kind == Record.Row && scan.isAlive
    }
    found
  }
}

/** Noted offsets. */
private[table] final class OffsetsCursor(offsets: Array[Long], count: Int) extends RowCursor {
  private var at = -1

  override def offset: Long = offsets(at)

  override def advance(): Boolean = {
    if (at < count) at += 1
    at < count
  }
}

/**
 * The rows of a cursor; with `lists`, all values of each key, one after the other. The pair and its
 * rows are reused: a row is good until the next call of `next`, also when its key is removed
 * meanwhile. Values that come to a key after the view are not seen.
 *
 * @param more  where a record says which value comes next, 0 for the first values alone
 */
private[table] final class RowIterator(
    cursor: RowCursor, view: LogView, header: Int, more: Int, key: UnsafeRow, value: UnsafeRow)
  extends Iterator[UnsafeRowPair] {

  private val pair = new UnsafeRowPair(key, value)
  private val record = new LogRecord(header)
  private var found = false
  private var exhausted = false
  private var next_ = Record.None

  override def hasNext: Boolean = {
    if (!found && !exhausted) {
      if (next_ != Record.None) {
        found = true
      } else if (cursor.advance()) {
        next_ = cursor.offset
        found = true
      } else {
        exhausted = true
      }
    }
    found
  }

  override def next(): UnsafeRowPair = {
    if (!hasNext) throw new NoSuchElementException("no more rows in this scan")
    found = false
    record.pointTo(view, next_)
    key.pointTo(record.page, record.keyAddress, record.keyLength)
    value.pointTo(record.page, record.valueAddress, record.valueLength)
    next_ = if (more == 0) Record.None else RowIterator.following(record, more, view)
    pair
  }
}

private[table] object RowIterator {
  /** The offset of the value that comes next for a record's key, as of a view. */
  def following(record: LogRecord, more: Int, view: LogView): Long = {
    val next = record.long(more)
    if (next < view.end) next else Record.None
  }
}

/** The values of one key from a first one on, with the same reuse of rows. */
private[table] final class ValuesIterator(
    first: Long, view: LogView, header: Int, more: Int, value: UnsafeRow) extends Iterator[UnsafeRow] {

  private val record = new LogRecord(header)
  private var next_ = first

  override def hasNext: Boolean = next_ != Record.None

  override def next(): UnsafeRow = {
    if (!hasNext) throw new NoSuchElementException("no more values of this key")
    record.pointTo(view, next_)
    value.pointTo(record.page, record.valueAddress, record.valueLength)
    next_ = RowIterator.following(record, more, view)
    value
  }
}
