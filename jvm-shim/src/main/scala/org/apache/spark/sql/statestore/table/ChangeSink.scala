package org.apache.spark.sql.statestore.table

/**
 * Takes changes in the order in which they apply. Rows are bytes at an address, and the caller's
 * own again after the call.
 */
private[statestore] trait ChangeSink {

  /** Whether a key may have several values. */
  def hasLists: Boolean

  /** Gives the key this value alone. */
  def put(
      keyBase: Object, keyOffset: Long, keyLength: Int,
      valueBase: Object, valueOffset: Long, valueLength: Int): Unit

  /** Gives the key one more value, after those that it has. */
  def add(
      keyBase: Object, keyOffset: Long, keyLength: Int,
      valueBase: Object, valueOffset: Long, valueLength: Int): Unit

  /** Removes the key with all its values. */
  def remove(keyBase: Object, keyOffset: Long, keyLength: Int): Unit
}
