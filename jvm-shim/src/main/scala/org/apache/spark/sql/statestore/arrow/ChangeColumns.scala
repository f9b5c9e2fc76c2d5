package org.apache.spark.sql.statestore.arrow

import org.apache.spark.sql.statestore.table.{ChangeSink, KeyHash}
import org.apache.spark.unsafe.Platform

/**
 * Columns of a batch of changes in off-heap memory of their owner, valid until the owner reuses it.
 *
 * Guarantees: the owner has checked every offset and width, so that each key and value is within the
 * memory.
 */
private[statestore] final class ChangeColumns {
  /** Number of changes. */
  var rows = 0

  /** Width of every key and every value; both 0 if there are offsets. */
  var keyWidth = 0
  var valueWidth = 0

  /** Addresses of the columns: one byte an operation, offsets of four bytes, one more than there are rows. */
  var ops = 0L
  var keyOffsets = 0L
  var keys = 0L
  var valueOffsets = 0L
  var values = 0L

  /** Hash of each key, valid after `hashKeys`. */
  var hashes = new Array[Int](0)

  /** True if a change merges a value into a key. */
  var hasMerges = false

  /** True if a change is not a put. */
  var hasOthersThanPuts = false

  def op(row: Int): Int = Platform.getByte(null, ops + row)

  def keyAt(row: Int): Long =
    if (keyWidth > 0) keys + row.toLong * keyWidth
    else keys + Platform.getInt(null, keyOffsets + 4L * row)

  def keyLength(row: Int): Int =
    if (keyWidth > 0) keyWidth
    else Platform.getInt(null, keyOffsets + 4L * row + 4L) - Platform.getInt(null, keyOffsets + 4L * row)

  def valueAt(row: Int): Long =
    if (valueWidth > 0) values + row.toLong * valueWidth
    else values + Platform.getInt(null, valueOffsets + 4L * row)

  def valueLength(row: Int): Int =
    if (valueWidth > 0) valueWidth
    else Platform.getInt(null, valueOffsets + 4L * row + 4L) - Platform.getInt(null, valueOffsets + 4L * row)

  /** Computes the hashes of the keys for a table. */
  def hashKeys(keyHash: KeyHash): Unit = {
    if (hashes.length < rows) hashes = new Array[Int](rows)
    if (keyWidth > 0) hashOfEqualLength(keyHash) else hashOfOffsets(keyHash)
  }

  private def hashOfEqualLength(keyHash: KeyHash): Unit = {
    val into = hashes
    val width = keyWidth
    var at = keys
    var row = 0
    while (row < rows) {
      into(row) = keyHash(null, at, width)
      at += width
      row += 1
    }
  }

  private def hashOfOffsets(keyHash: KeyHash): Unit = {
    val into = hashes
    val from = keys
    var at = Platform.getInt(null, keyOffsets)
    var row = 0
    while (row < rows) {
      val end = Platform.getInt(null, keyOffsets + 4L * row + 4L)
      into(row) = keyHash(null, from + at, end - at)
      at = end
      row += 1
    }
  }

  /** Applies the changes to a sink, in order. */
  def applyTo(sink: ChangeSink): Unit = applyTo(sink, 0, rows)

  /** Applies the changes of the rows from `from` to `until` (exclusive). */
  def applyTo(sink: ChangeSink, from: Int, until: Int): Unit = {
    var row = from
    while (row < until) {
      op(row) match {
        case ChangeColumns.Put =>
          sink.put(null, keyAt(row), keyLength(row), null, valueAt(row), valueLength(row))
        case ChangeColumns.Merge =>
          sink.merge(null, keyAt(row), keyLength(row), null, valueAt(row), valueLength(row))
        case ChangeColumns.Delete =>
          sink.remove(null, keyAt(row), keyLength(row))
      }
      row += 1
    }
  }
}

private[statestore] object ChangeColumns {
  /** The value replaces all values of its key. */
  final val Put = 0

  /** The key is deleted. */
  final val Delete = 1

  /** The value is appended to those of its key. */
  final val Merge = 2
}
