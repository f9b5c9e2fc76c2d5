package org.apache.spark.sql.statestore.table

/**
 * Copy of the live records of a table into an empty one: `run` copies what the table had at a snapshot, `catchUp`
 * applies what was appended since.
 *
 * Guarantees: the source is only read. `run` may execute on another thread while the source is written
 * to; it must be stopped before the source is rolled back behind `startTail`.
 */
private[table] final class TableCompaction(from: StateTable, content: TableSnapshot, to: StateTable) {
  private val view = content.view
  private val order = content.order
  private val record = new LogRecord(from.header)

  @volatile private var copied = false
  @volatile private var failed = false
  @volatile private var stopped = false
  private var running = false

  /** Tail of the log at the snapshot. */
  def startTail: Long = view.end

  /** True if `run` has completed. */
  def isCopied: Boolean = copied

  /** True if `run` has failed. */
  def hasFailed: Boolean = failed

  def run(): Unit = if (start()) {
    try copy() catch {
      case e: Throwable =>
        failed = true
        throw e
    } finally {
      end()
    }
  }

  /** Stops `run` and waits until it reads no more. */
  def stop(): Unit = synchronized {
    stopped = true
    while (running) wait()
  }

  /** Stops `run` and frees the copy. */
  def discard(): Unit = {
    stop()
    to.discard()
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
    to.reserve(content.keys)
    val cursor =
      if (order == null) new LogCursor(from.scan(view))
      else new OrderedTree.Cursor(order, view, from.header, null, null, through = false)
    while (!stopped && cursor.advance()) {
      val first = copyList(cursor.offset)
      if (to.tree != null) to.tree.append(first)
    }
    copied = !stopped
  }

  /** Applies what was appended since to the copy; returns it, with the same content as the source. */
  def catchUp(): StateTable = {
    val changes = from.scan(from.records.log.view, view.end)
    while (changes.advance()) {
      changes.kind match {
        case Record.Row | Record.Append =>
          val page = changes.page
          if (changes.isMerge) {
            to.merge(page, changes.keyAddress, changes.keyLength, page, changes.valueAddress, changes.valueLength)
          } else {
            to.put(page, changes.keyAddress, changes.keyLength, page, changes.valueAddress, changes.valueLength)
          }
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
    val hash = to.keyHash(record.page, record.keyAddress, record.keyLength)
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
        if (from.hasLists && record.long(from.records.head) == first) to.records.setMerged(copied)
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
