package org.apache.spark.sql.statestore.table

/**
 * The part of a table's log behind its last snapshot: the changes of the running batch. Once most of it is superseded,
 * as when a batch writes one key again and again, it is rewritten: the table is rolled back to the snapshot, and what
 * the changes have left is applied again.
 *
 * Guarantees: the table has the same rows before and after, and the same net changes since the snapshot. Rows that
 * `get` returned stay valid, since a rollback leaves former pages to those that have them. Nothing is rewritten once an
 * iterator has seen records behind the snapshot, as their offsets change, or once one is in a file, whose space only a
 * compaction frees. Iterators, snapshots and copies of an earlier
 * time have none of these offsets, and take records that are superseded behind their end for alive, by whatever record.
 * If a rewrite fails, the table cannot be committed until it is rolled back.
 */
private[table] final class BatchLog(table: StateTable) {
  private var start: TableSnapshot = _
  private var startTail = Long.MaxValue
  private var garbage = 0L
  private var isFixed = false
  private var isIncomplete = false

  /** Superseded bytes from which a rewrite is considered. */
  var mostGarbage: Long = BatchLog.MostGarbage

  /** Number of rewrites. */
  var rewrites = 0L

  /** Begins a batch: the content of the table is that of a snapshot. */
  def begin(at: TableSnapshot): Unit = {
    start = at
    startTail = at.tail
    garbage = 0L
    isFixed = false
    isIncomplete = false
  }

  /** Ends the batch: offsets have changed, and there is no snapshot yet. */
  def end(): Unit = {
    start = null
    startTail = Long.MaxValue
    garbage = 0L
  }

  /** Accounts for a record that was superseded. */
  def superseded(record: Long): Unit = if (record >= startTail) garbage += table.records.sizeOf(record)

  /** Marks the records before `tail` as read by an iterator. Changes nothing while nothing was written. */
  def markRead(tail: Long): Unit = if (tail > startTail) isFixed = true

  def requireComplete(): Unit = if (isIncomplete) {
    throw new IllegalStateException(
      "the changes of this batch were lost in memory when an earlier operation failed. Nothing that was committed is " +
        "lost: the task must fail, and its retry starts from the last version.")
  }

  /** Rewrites the batch's part of the log if most of it is superseded. To be called between two operations. */
  def rewriteIfWanted(): Unit =
    if (garbage > mostGarbage && !isFixed && !isIncomplete && 2 * garbage > table.tail - startTail) {
      if (table.records.log.isInHeap(startTail)) rewrite() else isFixed = true
    }

  private def rewrite(): Unit = {
    val view = table.records.log.view
    val alive = aliveBehind(view)
    isIncomplete = true
    table.rollbackTo(start)
    isIncomplete = true
    val record = new LogRecord(table.header)
    alive.foreach { offset =>
      record.pointTo(view, offset)
      applyAgain(record, offset)
    }
    isIncomplete = false
    rewrites += 1
  }

  private def aliveBehind(view: LogView): Array[Long] = {
    val offsets = Array.newBuilder[Long]
    val records = table.scan(view, startTail)
    while (records.advance()) if (records.kind != Record.Group && records.isAlive) offsets += records.offset
    offsets.result()
  }

  private def applyAgain(record: LogRecord, offset: Long): Unit = {
    val kind = Record.kind(record.long(Record.Link))
    val startsList = kind == Record.Row && table.hasLists && record.long(table.records.head) == offset
    // The first value that is merged into a list begins a new one, whatever the key had at the snapshot.
    if (kind == Record.Tombstone || startsList) table.remove(record.page, record.keyAddress, record.keyLength)
    if (kind == Record.Append || startsList) {
      table.merge(record.page, record.keyAddress, record.keyLength, record.page, record.valueAddress, record.valueLength)
    } else if (kind == Record.Row) {
      table.put(record.page, record.keyAddress, record.keyLength, record.page, record.valueAddress, record.valueLength)
    }
  }
}

private[table] object BatchLog {
  // Rewriting this much takes some ten milliseconds.
  private final val MostGarbage = 16L << 20
}
