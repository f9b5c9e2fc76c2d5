package org.apache.spark.sql.statestore.table

import org.apache.spark.unsafe.Platform

/**
 * A batch of changes as columns in off-heap memory, which is its owner's: good until that is filled
 * anew.
 *
 * Guarantees: whoever sets it has checked every offset and width, so that each key and value lies in the memory
 * that was given.
 */
private[statestore] final class ChangeColumns {
  /** Number of changes. */
  var rows = 0

  /** What each key and each value takes, one behind the other; both 0 if offsets tell where they are. */
  var keyWidth = 0
  var valueWidth = 0

  /** Addresses of the columns: one byte an operation, offsets of four bytes, one more than there are rows. */
  var ops = 0L
  var keyOffsets = 0L
  var keys = 0L
  var valueOffsets = 0L
  var values = 0L

  /** The hash of each key, once `hashKeys` has told them. */
  var hashes = new Array[Int](0)

  /** Whether there is one that adds a value to a key. */
  var hasAppends = false

  /** Whether there is one that is no put. */
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

  def hashKeys(): Unit = {
    if (hashes.length < rows) hashes = new Array[Int](rows)
    if (keyWidth > 0) hashOfEqualLength() else hashOfOffsets()
  }

  private def hashOfEqualLength(): Unit = {
    val into = hashes
    val width = keyWidth
    var at = keys
    var row = 0
    while (row < rows) {
      into(row) = StateTable.hashOf(null, at, width)
      at += width
      row += 1
    }
  }

  private def hashOfOffsets(): Unit = {
    val into = hashes
    val from = keys
    var at = Platform.getInt(null, keyOffsets)
    var row = 0
    while (row < rows) {
      val end = Platform.getInt(null, keyOffsets + 4L * row + 4L)
      into(row) = StateTable.hashOf(null, from + at, end - at)
      at = end
      row += 1
    }
  }

  /** Hands the changes on in their order. */
  def applyTo(sink: ChangeSink): Unit = {
    var row = 0
    while (row < rows) {
      op(row) match {
        case ChangeColumns.Put =>
          sink.put(null, keyAt(row), keyLength(row), null, valueAt(row), valueLength(row))
        case ChangeColumns.Append =>
          sink.add(null, keyAt(row), keyLength(row), null, valueAt(row), valueLength(row))
        case ChangeColumns.Remove =>
          sink.remove(null, keyAt(row), keyLength(row))
      }
      row += 1
    }
  }
}

private[statestore] object ChangeColumns {
  /** The row was put: it replaces all that its key had. */
  final val Put = 0

  /** The key was removed. */
  final val Remove = 1

  /** The value comes after those that the key has. */
  final val Append = 2
}
