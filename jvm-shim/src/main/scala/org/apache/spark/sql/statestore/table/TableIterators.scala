package org.apache.spark.sql.statestore.table

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair
import org.apache.spark.unsafe.Platform

/** One record at a known place; reused by pointing it elsewhere. */
private[statestore] final class LogRecord(header: Int) {
  var page: Array[Byte] = _
  private var position = 0L

  def pointTo(inPage: Array[Byte], at: Long): Unit = {
    page = inPage
    position = at
  }

  def hash: Int = Platform.getInt(page, position + Record.Hash)
  def keyLength: Int = Platform.getInt(page, position + Record.KeyLength)
  def valueLength: Int = Platform.getInt(page, position + Record.ValueLength)
  def keyAddress: Long = position + header
  def valueAddress: Long = position + header + keyLength
}

/**
 * The rows that were alive at the end of a scan's view. The pair and its rows are reused: a row
 * is good until the next call of `next`, also when its key is removed meanwhile.
 */
private[table] final class TableIterator(scan: LogScan, key: UnsafeRow, value: UnsafeRow)
  extends Iterator[UnsafeRowPair] {

  private val pair = new UnsafeRowPair(key, value)
  private var found = false
  private var exhausted = false

  override def hasNext: Boolean = {
    while (!found && !exhausted) {
      if (!scan.advance()) exhausted = true
      else found = scan.kind == Record.Row && scan.isAlive
    }
    found
  }

  override def next(): UnsafeRowPair = {
    if (!hasNext) throw new NoSuchElementException("no more rows in this scan")
    found = false
    key.pointTo(scan.page, scan.keyAddress, scan.keyLength)
    value.pointTo(scan.page, scan.valueAddress, scan.valueLength)
    pair
  }
}

/** The rows at noted offsets, with the same reuse of rows as `TableIterator`. */
private[table] final class OffsetsIterator(
    view: LogView, header: Int, offsets: Array[Long], count: Int, key: UnsafeRow, value: UnsafeRow)
  extends Iterator[UnsafeRowPair] {

  private val pair = new UnsafeRowPair(key, value)
  private val record = new LogRecord(header)
  private var at = 0

  override def hasNext: Boolean = at < count

  override def next(): UnsafeRowPair = {
    if (!hasNext) throw new NoSuchElementException("no more rows in this scan")
    val offset = offsets(at)
    at += 1
    record.pointTo(view.pages((offset >>> Log.PageBits).toInt), Log.address(offset))
    key.pointTo(record.page, record.keyAddress, record.keyLength)
    value.pointTo(record.page, record.valueAddress, record.valueLength)
    pair
  }
}
