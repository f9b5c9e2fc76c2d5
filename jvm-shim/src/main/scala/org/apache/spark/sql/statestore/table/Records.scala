package org.apache.spark.sql.statestore.table

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.statestore.arrow.ChangeBatch
import org.apache.spark.unsafe.Platform

/**
 * Access to the fields of the records of one log; see `Record` for the layout.
 *
 * Guarantees: a written record is immutable but for its pointers. A key or value that exceeds the limits
 * of a record is refused before anything is written.
 *
 * @param memory     allocates the log
 * @param keyFields  number of fields of the shortest keys, be they prefixes
 * @param hasRings   whether records are members of prefix groups
 * @param hasLists   whether a key may have several values
 * @param keyHash    hash of the keys
 */
private[table] final class Records(
    memory: TableMemory, keyFields: Int, val hasRings: Boolean, val hasLists: Boolean, val keyHash: KeyHash) {
  private val smallestKey = UnsafeRow.calculateBitSetWidthInBytes(keyFields) + 8 * keyFields

  /** Position of the offset of the key's first value. */
  val head: Int = Record.PlainHeader + (if (hasRings) Record.RingBytes else 0)

  /** Position of the offset of the key's next value. */
  val more: Int = head + 8

  val header: Int = head + (if (hasLists) Record.ListBytes else 0)

  /** The log, in which records have distinct marks if none is smaller than this. */
  val log = new Log(memory, header + smallestKey)

  def write(
      kind: Int, prev: Long,
      keyBase: Object, keyOffset: Long, keyLength: Int,
      valueBase: Object, valueOffset: Long, valueLength: Int): Long = {
    Records.check(header, smallestKey, keyLength, valueLength)
    val at = log.append(header + keyLength + valueLength)
    val page = log.page(at)
    val record = log.address(page, at)
    // Pages are reused after a rollback: every field must be written.
    Platform.putLong(page, record + Record.Dead, Record.deadWord(Record.None, valueLength))
    Platform.putLong(page, record + Record.Link, Record.linkWord(prev, keyLength, kind))
    if (hasLists) {
      Platform.putLong(page, record + head, Record.None)
      Platform.putLong(page, record + more, Record.None)
    }
    Words.copy(keyBase, keyOffset, page, record + header, keyLength)
    Words.copy(valueBase, valueOffset, page, record + header + keyLength, valueLength)
    at
  }

  /** True if a record has this key. */
  def hasKey(at: Long, base: Object, offset: Long, length: Int): Boolean = {
    val page = log.page(at)
    val record = log.address(page, at)
    Record.keyLength(Platform.getLong(page, record + Record.Link)) == length &&
      Words.areEqual(page, record + header, base, offset, length)
  }

  /** True if two records have the same key. */
  def haveSameKey(offset: Long, otherOffset: Long): Boolean = {
    val page = log.page(otherOffset)
    hasKey(offset, page, log.address(page, otherOffset) + header, keyLengthOf(otherOffset))
  }

  /** True if a record has this value. */
  def hasValue(at: Long, base: Object, offset: Long, length: Int): Boolean = {
    val page = log.page(at)
    val record = log.address(page, at)
    Record.valueLength(Platform.getLong(page, record + Record.Dead)) == length && {
      val keyLength = Record.keyLength(Platform.getLong(page, record + Record.Link))
      Words.areEqual(page, record + header + keyLength, base, offset, length)
    }
  }

  /** Links an `Append` record as the next value after another one in the list of `first`. */
  def chain(first: Long, last: Long, at: Long): Unit = {
    setLong(at, head, first)
    setLong(last, more, at)
  }

  /** Marks the `Row` record of a first value as merged. */
  def setMerged(at: Long): Unit = setLong(at, head, at)

  /** Undoes `chain`. */
  def unchain(last: Long): Unit = setLong(last, more, Record.None)

  /** The first value of a key whose newest record this is, none if it was removed. */
  def firstOf(newest: Long): Long =
    if (newest == Record.None) {
      Record.None
    } else {
      kindOf(newest) match {
        case Record.Row => newest
        case Record.Append => long(newest, head)
        case _ => Record.None
      }
    }

  /** The value after another one of the same key, none if it is the last. */
  def following(value: Long): Long = if (hasLists) long(value, more) else Record.None

  /** True if a key whose newest record this is has a value. */
  def isLive(newest: Long): Boolean = newest != Record.None && kindOf(newest) != Record.Tombstone

  def kindOf(at: Long): Int = Record.kind(long(at, Record.Link))

  def prevOf(at: Long): Long = Record.offsetIn(long(at, Record.Link))

  def keyLengthOf(at: Long): Int = Record.keyLength(long(at, Record.Link))

  /** The hash of a record's key. */
  def hashOf(at: Long): Int = {
    val page = log.page(at)
    keyHash(page, log.address(page, at) + header, keyLengthOf(at))
  }

  /** Marks a record as superseded by another one; `Record.None` undoes it. */
  def setDeadAt(at: Long, dead: Long): Unit = if (log.page(at) != null || !log.mark(at, dead)) {
    val page = log.page(at)
    val word = log.address(page, at) + Record.Dead
    // A single write, since scans of other threads read the length of the value from the same word.
    Platform.putLong(page, word, Platform.getLong(page, word) & ~Record.OffsetMask | dead >>> 3)
  }

  def sizeOf(at: Long): Int = {
    val page = log.page(at)
    val record = log.address(page, at)
    header + Record.keyLength(Platform.getLong(page, record + Record.Link)) +
      Record.valueLength(Platform.getLong(page, record + Record.Dead))
  }

  private[table] def long(at: Long, field: Int): Long = {
    val page = log.page(at)
    Platform.getLong(page, log.address(page, at) + field)
  }

  private[table] def setLong(at: Long, field: Int, to: Long): Unit = {
    val page = log.page(at)
    Platform.putLong(page, log.address(page, at) + field, to)
  }
}

private[table] object Records {
  import ChangeBatch.LargestRecord

  /** Refuses a row that a record has no room for, or that could not be committed. */
  private[table] def check(header: Int, smallestKey: Int, keyLength: Int, valueLength: Int): Unit =
    if (((keyLength | valueLength) & 7) != 0 || keyLength < smallestKey || keyLength > Record.LongestKey ||
      header.toLong + keyLength + valueLength > LargestRecord) refuse(smallestKey, keyLength, valueLength)

  private def refuse(smallestKey: Int, keyLength: Int, valueLength: Int): Nothing = {
    val why =
      if (((keyLength | valueLength) & 7) != 0) "rows are whole words of eight bytes"
      else if (keyLength < smallestKey) s"with its fields a key has at least $smallestKey bytes"
      else if (keyLength > Record.LongestKey) s"a key has at most ${Record.LongestKey} bytes"
      else s"key and value together have at most $LargestRecord bytes"
    throw new IllegalArgumentException(
      s"a state row with a key of $keyLength bytes and a value of $valueLength bytes cannot be stored: $why")
  }
}

/** Copy and comparison of rows, which are whole words and mostly short. */
private[table] object Words {
  // Above this size Platform.copyMemory is faster.
  private final val Short = 128

  def copy(from: Object, fromOffset: Long, to: Object, toOffset: Long, length: Int): Unit =
    if (length <= Short) {
      var i = 0
      while (i < length) {
        Platform.putLong(to, toOffset + i, Platform.getLong(from, fromOffset + i))
        i += 8
      }
    } else {
      Platform.copyMemory(from, fromOffset, to, toOffset, length.toLong)
    }

  def areEqual(a: Object, aOffset: Long, b: Object, bOffset: Long, length: Int): Boolean = {
    var i = 0
    while (i < length && Platform.getLong(a, aOffset + i) == Platform.getLong(b, bOffset + i)) i += 8
    i >= length
  }
}
