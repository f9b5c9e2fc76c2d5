package org.apache.spark.sql.statestore.table

import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.array.ByteArrayMethods

/**
 * The records of one log, by their fields; see `Record` for where those lie.
 *
 * Guarantees: what a record is written with stays as it is, but for the pointers that say so.
 *
 * @param hasRings  whether records are members of prefix groups
 * @param hasLists  whether a key may have several values
 */
private[table] final class Records(val log: Log, val hasRings: Boolean, val hasLists: Boolean) {
  private val head = Record.PlainHeader + (if (hasRings) Record.RingBytes else 0)

  /** Where a record names the next value of its key. */
  val more: Int = head + 8

  val header: Int = head + (if (hasLists) Record.ListBytes else 0)

  /** The same layout over an empty log. */
  def onNewLog(): Records = new Records(new Log, hasRings, hasLists)

  def write(
      hash: Int, kind: Int, prev: Long,
      keyBase: Object, keyOffset: Long, keyLength: Int,
      valueBase: Object, valueOffset: Long, valueLength: Int): Long = {
    if (header.toLong + keyLength + valueLength > Records.LargestRecord) {
      throw new IllegalArgumentException(
        s"a row of ${keyLength.toLong + valueLength} bytes is larger than one record may be")
    }
    val at = log.append(Record.align(header + keyLength + valueLength))
    val page = log.page(at)
    val record = Log.address(at)
    // Pages are reused after a rollback, so every field is written.
    Platform.putLong(page, record + Record.DeadAt, Record.None)
    Platform.putLong(page, record + Record.Prev, prev)
    Platform.putInt(page, record + Record.Hash, hash)
    Platform.putInt(page, record + Record.KeyLength, keyLength)
    Platform.putInt(page, record + Record.ValueLength, valueLength)
    Platform.putInt(page, record + Record.Kind, kind)
    if (hasLists) {
      Platform.putLong(page, record + head, Record.None)
      Platform.putLong(page, record + more, Record.None)
    }
    Platform.copyMemory(keyBase, keyOffset, page, record + header, keyLength.toLong)
    if (valueLength > 0) {
      Platform.copyMemory(valueBase, valueOffset, page, record + header + keyLength, valueLength.toLong)
    }
    at
  }

  /** Makes an `Append` record the value that follows another one in the list of `first`. */
  def chain(first: Long, last: Long, at: Long): Unit = {
    setLong(at, head, first)
    setLong(last, more, at)
  }

  /** Undoes `chain`. */
  def unchain(last: Long): Unit = setLong(last, more, Record.None)

  /** The first value of a key whose newest record this is, none if it was removed. */
  def firstOf(newest: Long): Long =
    if (!isLive(newest)) Record.None
    else if (kindOf(newest) == Record.Append) long(newest, head)
    else newest

  /** The value after another one of the same key, none if it is the last. */
  def following(value: Long): Long = if (hasLists) long(value, more) else Record.None

  /** Whether a key whose newest record this is has a value. */
  def isLive(newest: Long): Boolean = newest != Record.None && kindOf(newest) != Record.Tombstone

  def hasValue(at: Long, keyLength: Int, base: Object, offset: Long, length: Int): Boolean = {
    val page = log.page(at)
    val record = Log.address(at)
    Platform.getInt(page, record + Record.ValueLength) == length &&
      ByteArrayMethods.arrayEquals(page, record + header + keyLength, base, offset, length.toLong)
  }

  def kindOf(at: Long): Int = int(at, Record.Kind)

  def hashOf(at: Long): Int = int(at, Record.Hash)

  def prevOf(at: Long): Long = long(at, Record.Prev)

  def setDeadAt(at: Long, dead: Long): Unit = setLong(at, Record.DeadAt, dead)

  def sizeOf(at: Long): Int = {
    val page = log.page(at)
    val record = Log.address(at)
    Record.align(header + Platform.getInt(page, record + Record.KeyLength) +
      Platform.getInt(page, record + Record.ValueLength))
  }

  private def int(at: Long, field: Int): Int = Platform.getInt(log.page(at), Log.address(at) + field)

  private def long(at: Long, field: Int): Long = Platform.getLong(log.page(at), Log.address(at) + field)

  private def setLong(at: Long, field: Int, to: Long): Unit =
    Platform.putLong(log.page(at), Log.address(at) + field, to)
}

private[table] object Records {
  private final val LargestRecord = Int.MaxValue - (1 << 20)
}
