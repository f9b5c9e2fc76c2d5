package org.apache.spark.sql.statestore.table

/**
 * One page of a log.
 *
 * @param used  the end of its records
 */
private[table] final class LogPage(val number: Int, val block: Block, val size: Int, val used: Int)

/**
 * One segment of an index.
 *
 * @param size   its bytes
 * @param depth  number of highest bits that all its hashes share
 * @param count  its entries
 */
private[table] final class IndexSegment(val block: Block, val size: Int, val depth: Int, val count: Int)

/**
 * The content of a table as blocks of memory, which a file can keep.
 *
 * @param counts  keys, values, and the bytes of live records, of all records and of groups
 * @param tail    end of the log
 * @param groups  index of the prefixes, empty if the table has none
 */
private[table] final class StoredTable(
    val counts: Array[Long], val tail: Long, val pages: Array[LogPage], val index: Array[IndexSegment],
    val groups: Array[IndexSegment]) {

  /**
   * Makes an empty table one of this content. Its keys have the same layout and hash. If they are ordered, the log has them in
   * that order.
   */
  def restore(table: StateTable): Unit = {
    table.keys = counts(0)
    table.values = counts(1)
    table.live = counts(2)
    table.total = counts(3)
    table.groupBytes = counts(4)
    if (pages.nonEmpty) table.records.log.restore(pages, tail)
    table.index.restore(index)
    if (table.groups != null) table.groups.index.restore(groups)
    if (table.tree != null) {
      val rows = table.scan(table.records.log.view)
      while (rows.advance()) if (rows.kind == Record.Row) table.tree.append(rows.offset)
    }
  }
}

private[table] object StoredTable {
  def of(table: StateTable): StoredTable = new StoredTable(
    Array(table.keys, table.values, table.live, table.total, table.groupBytes), table.tail, table.records.log.describe(),
    table.index.describe(), if (table.groups == null) Array.empty else table.groups.index.describe())
}
