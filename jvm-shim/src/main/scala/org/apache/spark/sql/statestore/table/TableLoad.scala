package org.apache.spark.sql.statestore.table

/**
 * Fills an empty table from streams of changes that come with the newest first, where a key has one
 * value: the first change of a key that is seen is its last, so what it superseded is never written.
 *
 * Guarantees: the table then has the rows that the same streams give when they are applied with the
 * oldest first. Nothing is taken for granted of what a stream holds: one that changes a key twice is
 * refused, since within a stream the later change counts.
 */
private[statestore] final class TableLoad(table: StateTable) {
  import TableLoad._

  private val guesses = new Array[Long](Ahead)

  // Keys that were removed, and not put since; made when the first one comes.
  private var removed: StateTable = _

  // Where the records of the present stream begin.
  private var rowsFrom = table.tail
  private var removedFrom = Log.FirstOffset

  // Made of what was looked at ahead of time, so that looking is not optimised away.
  private var seen = 0

  // Takes the rows of the first stream, before which nothing is known; null afterwards.
  private var filling = new IndexFill(table)

  /** What follows is of an older stream; false as in `take`. */
  def nextStream(): Boolean = {
    val sound = finish()
    rowsFrom = table.tail
    removedFrom = if (removed == null) Log.FirstOffset else removed.tail
    sound
  }

  /** Everything came; false as in `take`. */
  def finish(): Boolean = {
    val filled = filling
    filling = null
    filled == null || filled.finish()
  }

  /** Takes a batch of the present stream, whose hashes are known; false if the stream cannot be loaded like this. */
  def take(batch: ChangeColumns): Boolean = {
    if (filling != null && batch.hasOthersThanPuts && !finish()) false
    else if (filling != null) filling.take(batch)
    else takeUnknown(batch)
  }

  private def takeUnknown(batch: ChangeColumns): Boolean = {
    val hashes = batch.hashes
    var from = 0
    var sound = true
    var looks = 0
    while (sound && from < batch.rows) {
      val until = math.min(batch.rows, from + Ahead)
      // Each row misses the cache in the index, and in the log if its key is known. Asked for together, the
      // rows wait together.
      var row = from
      while (row < until) {
        guesses(row - from) = table.guess(hashes(row))
        row += 1
      }
      row = from
      while (row < until) {
        if (guesses(row - from) != Record.None) looks += table.touch(guesses(row - from))
        row += 1
      }
      row = from
      while (sound && row < until) {
        sound = take(batch, row, hashes(row))
        row += 1
      }
      from = until
    }
    seen += looks
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
          val known = table.putIfNew(hash, null, key, length, null, batch.valueAt(row), batch.valueLength(row))
          known == Record.None || known < rowsFrom
        case ChangeColumns.Remove =>
          val known = table.newestOf(hash, null, key, length)
          if (known == Record.None) {
            if (removed == null) removed = new StateTable(table.keyFields, 0)
            removed.putIfNew(hash, null, key, length, null, 0L, 0)
          }
          known == Record.None || known < rowsFrom
        case _ =>
          false
      }
    }
  }
}

private[statestore] object TableLoad {
  /** Rows whose places in the index are asked for at a time. */
  private final val Ahead = 64
}
