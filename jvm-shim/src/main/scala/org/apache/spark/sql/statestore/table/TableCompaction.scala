package org.apache.spark.sql.statestore.table

/**
 * Copies what is alive in one table into another one that is empty, so that what was superseded does not
 * take room any more. The first table is only read: if copying fails it is as it was.
 */
private[table] final class TableCompaction(from: StateTable, to: StateTable) {
  private val view = from.records.log.view
  private val record = new LogRecord(from.header)

  def run(): Unit = {
    to.reserve(from.numKeys)
    if (from.groups != null) {
      copyGroups()
    } else {
      val cursor =
        if (from.tree == null) new LogCursor(from.scan(view))
        else new OrderedTree.Cursor(from.tree.current, view, from.header, null, null, through = false)
      while (cursor.advance()) {
        val first = copyList(cursor.offset)
        if (to.tree != null) to.tree.append(first)
      }
    }
  }

  private def copyGroups(): Unit = {
    val heads = from.scan(view)
    while (heads.advance()) {
      if (heads.kind == Record.Group) {
        val members = from.groups.membersOf(heads.offset)
        if (members.nonEmpty) {
          val group = to.appendGroup(heads.hash, heads.page, heads.keyAddress, heads.keyLength)
          members.foreach(member => to.groups.link(group, copyList(member)))
        }
      }
    }
  }

  // Copies all values of a key; returns the offset of the first one.
  private def copyList(first: Long): Long = {
    record.pointTo(view, first)
    val hash = record.hash
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
        copiedFirst = copied
      } else {
        to.records.chain(copiedFirst, last, copied)
        to.index.replace(hash, last, copied)
      }
      last = copied
      at = if (from.hasLists) record.long(from.records.more) else Record.None
    }
    to.keys += 1
    copiedFirst
  }
}
