package org.apache.spark.sql.statestore.table

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.unsafe.Platform

/**
 * Keys that were chosen so that their hashes agree in their highest bits: by a hash whose constants are known, or by
 * any that combines words by multiplication modulo 2^64 and shifts, whatever its constants are.
 */
object ChosenKeysTrial {
  // The constants and steps of a hash that could be computed outside of the process.
  private final val Seed = 0x5ca1ab1e7ab1e5L
  private final val Multiplier = 0x9e3779b97f4a7c15L
  private final val Inverse = (0 until 5).foldLeft(Multiplier)((x, _) => x * (2 - Multiplier * x))

  // More than a segment of the index has room for.
  private final val Keys = 1 << 13

  /** Puts keys of one word; returns the number of keys in the table. */
  def putKeysOfOneWord(): Long = {
    val before = step(Seed ^ 16L, 0L)
    put((0 until Keys).map { i =>
      val product = (i.toLong << 36) * Inverse
      Array((product ^ product >>> 32) * Inverse ^ before)
    })
  }

  /** Puts keys of 26 words, in pairs of which the second one cancels what the first one changes. */
  def putKeysOfPairs(): Long = put((0 until Keys).map { i =>
    Array.tabulate(26) { word =>
      val isChanged = (i >> word / 2 & 1) != 0
      if (!isChanged) 0L else if (word % 2 == 0) Long.MinValue else Long.MinValue | 1L << 31
    }
  })

  private def put(keys: Seq[Array[Long]]): Long = {
    require(keys.map(hash(_) >>> 17).distinct.size == 1, "these keys are not what they should be")
    val table = new StateTable(1, 1)
    val value = row(Array(0L))
    keys.foreach(key => table.put(row(key), value))
    table.discard()
    table.numKeys
  }

  private def hash(key: Array[Long]): Int = {
    val words = 0L +: key
    ((words.foldLeft(Seed ^ 8L * words.length)(step) * Multiplier) >>> 32).toInt
  }

  private def step(h: Long, word: Long): Long = {
    val product = (h ^ word) * Multiplier
    product ^ product >>> 32
  }

  private def row(columns: Array[Long]): UnsafeRow = {
    val bytes = new Array[Byte](8 + 8 * columns.length)
    columns.indices.foreach(i => Platform.putLong(bytes, Platform.BYTE_ARRAY_OFFSET + 8L + 8L * i, columns(i)))
    val unsafeRow = new UnsafeRow(1)
    unsafeRow.pointTo(bytes, bytes.length)
    unsafeRow
  }
}
