package org.apache.spark.sql.statestore.convert

import org.apache.spark.sql.catalyst.expressions.{UnsafeRow, XXH64}

/**
 * Count and checksum of a family's rows.
 *
 * Guarantees: equal for equal rows in any order of keys, so that sums over partitions can be compared; the
 * values of a key count in their order. `ordered` also depends on the order of keys.
 */
private[convert] final class RowDigest(hasLists: Boolean) {
  private var last: UnsafeRow = _
  private var index = 0L

  var keys = 0L
  var values = 0L
  var bytes = 0L
  var sum = 0L
  var ordered = 0L

  def add(key: UnsafeRow, value: UnsafeRow): Unit = {
    if (hasLists && last != null && last == key) {
      index += 1
    } else {
      index = 0
      keys += 1
      if (hasLists) last = key.copy()
    }
    val row = hash(value, hash(key, index))
    values += 1
    bytes += key.getSizeInBytes + value.getSizeInBytes
    sum += row
    ordered = ordered * 31 + row
  }

  private def hash(row: UnsafeRow, seed: Long): Long =
    XXH64.hashUnsafeBytes(row.getBaseObject, row.getBaseOffset, row.getSizeInBytes, seed)
}
