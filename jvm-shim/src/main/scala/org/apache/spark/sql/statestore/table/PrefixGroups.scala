package org.apache.spark.sql.statestore.table

import org.apache.spark.sql.catalyst.expressions.{BoundReference, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.types.StructType

/**
 * Prefix index: the rows of each key prefix are a doubly linked ring around a `Group` record of the
 * prefix.
 *
 * Guarantees: a ring has exactly the first value of each key with that prefix, in the order in which the
 * keys were first put. A record that is unlinked keeps its pointers, so that changes can be undone exactly,
 * newest first.
 */
private[statestore] final class PrefixGroups(records: Records, val projection: PrefixProjection) {
  private[table] val index = new HashIndex(records)

  def memoryBytes: Long = index.memoryBytes

  /** Moves parts of the index to the heap, see `HashIndex.moveToHeap`. */
  def moveToHeap(): Unit = index.moveToHeap()

  /** Returns the group of a prefix, `Record.None` if it has none. */
  def find(prefix: UnsafeRow): Long = index.lookup(
    records.keyHash(prefix.getBaseObject, prefix.getBaseOffset, prefix.getSizeInBytes),
    prefix.getBaseObject, prefix.getBaseOffset, prefix.getSizeInBytes)

  /** Reserves room for one more group; returns the position for `add`. */
  def room(hash: Int): Int = index.room(hash)

  /** Adds a group record that was just appended. */
  def add(position: Int, hash: Int, group: Long): Unit = {
    setNext(group, group)
    setBefore(group, group)
    index.insertAt(position, hash, group)
  }

  /** Undoes `add`: by then its ring is empty again. */
  def drop(hash: Int, group: Long): Unit = index.remove(hash, group)

  def link(group: Long, record: Long): Unit = {
    val last = before(group)
    setBefore(record, last)
    setNext(record, group)
    setNext(last, record)
    setBefore(group, record)
  }

  def unlink(record: Long): Unit = {
    setNext(before(record), next(record))
    setBefore(next(record), before(record))
  }

  /** Undoes `unlink` or `substitute`. */
  def relink(record: Long): Unit = {
    setNext(before(record), record)
    setBefore(next(record), record)
  }

  /** Puts a newer record of the same key in the position of an older one. */
  def substitute(older: Long, newer: Long): Unit = {
    setNext(newer, next(older))
    setBefore(newer, before(older))
    relink(newer)
  }

  /**
   * Returns the members of a group, in order. The ring is walked from both ends at once, so that two cache
   * misses overlap.
   */
  def membersOf(group: Long): Array[Long] = {
    var firsts = new Array[Long](8)
    var lasts = new Array[Long](8)
    var count = 0
    var first = next(group)
    var last = before(group)
    var met = first == group
    while (!met && first != last) {
      if (count == firsts.length) {
        firsts = java.util.Arrays.copyOf(firsts, count * 2)
        lasts = java.util.Arrays.copyOf(lasts, count * 2)
      }
      firsts(count) = first
      lasts(count) = last
      count += 1
      val following = next(first)
      met = following == last
      first = following
      last = before(last)
    }
    val members = java.util.Arrays.copyOf(firsts, 2 * count + (if (met) 0 else 1))
    if (!met) members(count) = first
    var i = 0
    while (i < count) {
      members(members.length - 1 - i) = lasts(i)
      i += 1
    }
    members
  }

  private def next(record: Long): Long = get(record, Record.Next)
  private def before(record: Long): Long = get(record, Record.Before)
  private def setNext(record: Long, to: Long): Unit = set(record, Record.Next, to)
  private def setBefore(record: Long, to: Long): Unit = set(record, Record.Before, to)

  private def get(record: Long, field: Int): Long = records.long(record, field)
  private def set(record: Long, field: Int, to: Long): Unit = records.setLong(record, field, to)
}

/** Projection of a key to its first columns, byte-identical to what an operator passes to prefixScan. */
private[statestore] final class PrefixProjection(keySchema: StructType, val columns: Int) {
  private val project = UnsafeProjection.create(
    keySchema.fields.take(columns).zipWithIndex.toSeq.map { case (field, i) =>
      BoundReference(i, field.dataType, field.nullable)
    })
  private val key = new UnsafeRow(keySchema.length)

  /** Returns a copy for another thread. */
  def copy(): PrefixProjection = new PrefixProjection(keySchema, columns)

  /** Returns the prefix of a key; the row is reused by the next call. */
  def prefixOf(keyBase: Object, keyOffset: Long, keyLength: Int): UnsafeRow = {
    key.pointTo(keyBase, keyOffset, keyLength)
    project(key)
  }
}
