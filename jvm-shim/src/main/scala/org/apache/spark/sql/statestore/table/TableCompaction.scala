package org.apache.spark.sql.statestore.table

/**
 * Copies what is alive in one table into another one that is empty, so that what was superseded does not
 * take room any more: `run` what was there when this was made, then `catchUp` what came since.
 *
 * Guarantees: the first table is only read. `run` may be on another thread while the table is written to, as
 * long as the table does not go back behind where it was when this was made: before that, `stop` it.
 */
private[table] final class TableCompaction(from: StateTable, to: StateTable) {
  private val view = from.records.log.view
  private val order = if (from.tree == null) null else from.tree.snapshot()
  private val keys = from.numKeys
  private val record = new LogRecord(from.header)

  @volatile private var copied = false
  @volatile private var stopped = false
  private var running = false

  /** Where the log ended when this was made. */
  def since: Long = view.end

  /** Whether all was copied that there was. */
  def isCopied: Boolean = copied

  def run(): Unit = if (start()) try copy() finally end()

  /** Makes sure that `run` reads nothing any more. */
  def stop(): Unit = synchronized {
    stopped = true
    while (running) wait()
  }

  private def start(): Boolean = synchronized {
    running = !stopped
    running
  }

  private def end(): Unit = synchronized {
    running = false
    notifyAll()
  }

  private def copy(): Unit = {
    to.reserve(keys)
    val cursor =
      if (order == null) new LogCursor(from.scan(view))
      else new OrderedTree.Cursor(order, view, from.header, null, null, through = false)
    while (!stopped && cursor.advance()) {
      val first = copyList(cursor.offset)
      if (to.tree != null) to.tree.append(first)
    }
    copied = !stopped
  }

  /** Does in the other table what was done since; returns it, which is as the first one then. */
  def catchUp(): StateTable = {
    val changes = from.scan(from.records.log.view, view.end)
    while (changes.advance()) {
      changes.kind match {
        case Record.Row => to.put(
          changes.page, changes.keyAddress, changes.keyLength, changes.page, changes.valueAddress, changes.valueLength)
        case Record.Append => to.add(
          changes.page, changes.keyAddress, changes.keyLength, changes.page, changes.valueAddress, changes.valueLength)
        case Record.Tombstone => to.remove(changes.page, changes.keyAddress, changes.keyLength)
        case Record.Group =>
      }
    }
    if (to.numKeys != from.numKeys || to.numValues != from.numValues) {
      throw new IllegalStateException(s"compacting ${from.numKeys} keys made ${to.numKeys} of them")
    }
    to
  }

  // Copies all values of a key; returns the offset of the first one.
  private def copyList(first: Long): Long = {
    record.pointTo(view, first)
    val hash = record.hash
    val group = if (to.groups == null) Record.None else to.groupOf(record.page, record.keyAddress, record.keyLength)
    var copiedFirst = Record.None
    var last = Record.None
    var at = first
    while (at != Record.None) {
      record.pointTo(view, at)
      val copied = to.append(
        if (at == first) Record.Row else Record.Append, last,
        record.page, record.keyAddress, record.keyLength,
        record.page, record.valueAddress, record.valueLength)
      to.live += to.records.sizeOf(copied)
      to.values += 1
      if (at == first) {
        to.index.insert(hash, copied)
        if (to.groups != null) to.groups.link(group, copied)
        copiedFirst = copied
      } else {
        to.records.chain(copiedFirst, last, copied)
        to.index.replace(hash, last, copied)
      }
      last = copied
      at = if (from.hasLists) RowIterator.following(record, from.records.more, view) else Record.None
    }
    to.keys += 1
    copiedFirst
  }
}
