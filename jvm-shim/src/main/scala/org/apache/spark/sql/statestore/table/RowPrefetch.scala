package org.apache.spark.sql.statestore.table

import org.apache.spark.sql.statestore.arrow.ChangeColumns

/**
 * Prefetch of what changes read in a table. A change misses the processor's cache in the index, and in the log if its
 * key is in the table. Reading both for a group of changes before they are applied overlaps their misses.
 *
 * Guarantees: it reads index entries and records that exist, and changes nothing.
 */
private[statestore] final class RowPrefetch(table: StateTable) {
  import RowPrefetch._

  private val guesses = new Array[Long](Group)

  // As a blackhole of JMH: consumes what was read, so that reading is not optimised away.
  private var blackhole = 0

  /** Prefetches for the next rows of a batch, whose hashes are computed; returns the end of these rows. */
  def next(batch: ChangeColumns, from: Int): Int = {
    val hashes = batch.hashes
    val until = math.min(batch.rows, from + Group)
    var row = from
    while (row < until) {
      guesses(row - from) = table.guess(hashes(row))
      row += 1
    }
    var looks = 0
    row = from
    while (row < until) {
      if (guesses(row - from) != Record.None) looks += table.touch(guesses(row - from))
      row += 1
    }
    blackhole += looks
    until
  }
}

private[table] object RowPrefetch {
  private final val Group = 64
}
