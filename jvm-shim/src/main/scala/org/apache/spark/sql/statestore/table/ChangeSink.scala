package org.apache.spark.sql.statestore.table

/**
 * Receiver of changes in the order in which they apply. Rows are bytes at an address; the caller may
 * reuse them after the call.
 */
private[statestore] trait ChangeSink {

  /** True if a key may have several values. */
  def hasLists: Boolean

  /** Replaces all values of the key by this one. */
  def put(
      keyBase: Object, keyOffset: Long, keyLength: Int,
      valueBase: Object, valueOffset: Long, valueLength: Int): Unit

  /** Appends a value to those of the key. */
  def merge(
      keyBase: Object, keyOffset: Long, keyLength: Int,
      valueBase: Object, valueOffset: Long, valueLength: Int): Unit

  /** Removes the key with all its values. */
  def remove(keyBase: Object, keyOffset: Long, keyLength: Int): Unit
}
