package org.apache.spark.sql.statestore.table

import org.apache.spark.sql.statestore.arrow.ChangeColumns

/**
 * Bulk insertion of rows into an empty table. Index entries are buffered by the highest bits of their
 * hashes and inserted part by part, which seldom misses the processor's cache.
 *
 * Guarantees: a duplicate key is detected; no key is found in the table before `finish`.
 */
private[table] final class IndexFill(table: StateTable) {
  import IndexFill._

  private val waiting = Array.fill(Parts)(NoEntries)
  private val counts = new Array[Int](Parts)

  /** Inserts a batch of puts, whose hashes are computed; false if a duplicate key was found. */
  def take(batch: ChangeColumns): Boolean = {
    val hashes = batch.hashes
    var row = 0
    var sound = true
    while (sound && row < batch.rows) {
      val entry = table.putUnindexed(
        hashes(row), null, batch.keyAt(row), batch.keyLength(row),
        null, batch.valueAt(row), batch.valueLength(row))
      val part = (entry >>> PartShift).toInt
      if (counts(part) == waiting(part).length) sound = makeRoom(part)
      waiting(part)(counts(part)) = entry
      counts(part) += 1
      row += 1
    }
    sound
  }

  /** Inserts the buffered entries; false if a duplicate key was found. */
  def finish(): Boolean = {
    var part = 0
    while (part < Parts && insert(part)) part += 1
    part == Parts
  }

  private def makeRoom(part: Int): Boolean =
    if (waiting(part).length < ManyEntries) {
      waiting(part) = java.util.Arrays.copyOf(waiting(part), math.max(FewEntries, waiting(part).length * 4))
      true
    } else {
      insert(part)
    }

  private def insert(part: Int): Boolean = {
    val entries = waiting(part)
    val count = counts(part)
    var i = 0
    while (i < count && table.insertNew(entries(i))) i += 1
    counts(part) = 0
    i == count
  }
}

private[table] object IndexFill {
  private final val PartShift = 56
  private final val Parts = 1 << 64 - PartShift

  // At most 8 MiB wait, in pieces that are small for the collector.
  private val NoEntries = Array.empty[Long]
  private final val FewEntries = 16
  private final val ManyEntries = 4096
}
