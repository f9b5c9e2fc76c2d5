package org.apache.spark.sql.statestore.table

import org.apache.spark.sql.statestore.arrow.ChangeColumns

/**
 * Loader of an empty table from streams of changes, newest first, for one value per key: the first
 * change of a key that is seen is its last, so superseded rows are never written.
 *
 * Guarantees: the table then has the same rows as if the streams were applied oldest first. The
 * content of a stream is not trusted: one that changes a key twice is refused, since within a stream
 * the later change counts.
 */
private[statestore] final class TableLoad(table: StateTable) {
  private val prefetch = new RowPrefetch(table)

  // Keys that were removed, and not put since; made when the first one comes.
  private var removed: StateTable = _

  // Offset of the current stream's first record.
  private var rowsFrom = table.tail
  private var removedFrom = Log.FirstOffset

  // Inserts the rows of the first stream, when the table is empty; null afterwards.
  private var filling = new IndexFill(table)

  /** Begins the next older stream; false as in `take`. */
  def nextStream(): Boolean = {
    val sound = finish()
    rowsFrom = table.tail
    removedFrom = if (removed == null) Log.FirstOffset else removed.tail
    sound
  }

  /** Ends the load; false as in `take`. */
  def finish(): Boolean = {
    val filled = filling
    filling = null
    filled == null || filled.finish()
  }

  /** Frees what only the load needs. Idempotent. */
  def close(): Unit = if (removed != null) {
    removed.discard()
    removed = null
  }

  /** Applies a batch of the present stream, with its hashes; false if the stream cannot be loaded like this. */
  def take(batch: ChangeColumns): Boolean = {
    if (filling != null && batch.hasOthersThanPuts && !finish()) false
    else if (filling != null) filling.take(batch)
    else takeUnknown(batch)
  }

  private def takeUnknown(batch: ChangeColumns): Boolean = {
    val hashes = batch.hashes
    var row = 0
    var sound = true
    while (sound && row < batch.rows) {
      val until = prefetch.next(batch, row)
      while (sound && row < until) {
        sound = take(batch, row, hashes(row))
        row += 1
      }
    }
    sound
  }

  private def take(batch: ChangeColumns, row: Int, hash: Int): Boolean = {
    val key = batch.keyAt(row)
    val length = batch.keyLength(row)
    val buried = if (removed == null) Record.None else removed.newestOf(hash, null, key, length)
    if (buried != Record.None) {
      buried < removedFrom
    } else {
      batch.op(row) match {
        case ChangeColumns.Put =>
          val newest = table.putIfNew(hash, null, key, length, null, batch.valueAt(row), batch.valueLength(row))
          newest == Record.None || newest < rowsFrom
        case ChangeColumns.Delete =>
          val newest = table.newestOf(hash, null, key, length)
          if (newest == Record.None) {
            if (removed == null) removed = new StateTable(table.keyFields, 0, keyHash = table.keyHash)
            removed.putIfNew(hash, null, key, length, null, 0L, 0)
          }
          newest == Record.None || newest < rowsFrom
        case _ =>
          false
      }
    }
  }
}
