package org.apache.spark.sql.statestore.table

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair

/**
 * Scans of a table: of everything, of a prefix, of a range.
 *
 * Guarantees: an iterator is a snapshot of its creation. The pair and its rows are reused by the next call.
 */
private[statestore] trait TableScans { table: StateTable =>

  /**
   * Returns every key with its first value: in key order if the table is ordered, else in log order.
   *
   * @param everyValue  returns all values of each key, here and below
   */
  def iterator(everyValue: Boolean = false): Iterator[UnsafeRowPair] =
    if (tree != null) range(null, null, through = false, everyValue)
    else rows(new LogCursor(scan(viewToScan())), everyValue)

  /** Returns every key with its first value; with a prefix index, the keys of each prefix together. */
  def groupedIterator(): Iterator[UnsafeRowPair] =
    if (groups == null) {
      iterator()
    } else {
      val offsets = new Array[Long](math.toIntExact(keys))
      var count = 0
      val heads = scan(viewToScan())
      while (heads.advance()) {
        if (heads.kind == Record.Group) {
          val members = groups.membersOf(heads.offset)
          System.arraycopy(members, 0, offsets, count, members.length)
          count += members.length
        }
      }
      rows(new OffsetsCursor(offsets, count), everyValue = false)
    }

  /** Returns the first value of each of these keys, or null. */
  def firstValues(keys: Array[UnsafeRow]): Iterator[UnsafeRow] =
    new FirstValuesIterator(
      keys.map(key => records.firstOf(newestOf(key))), viewToScan(), header, newRow())

  /** Returns the keys that start with `prefixKey`. */
  def prefixScan(prefixKey: UnsafeRow, everyValue: Boolean = false): Iterator[UnsafeRowPair] =
    if (tree != null) {
      val prefix = boundOf(prefixKey)
      range(prefix, prefix, through = true, everyValue)
    } else {
      groupScan(prefixKey, everyValue)
    }

  /**
   * Returns the keys from `start` (inclusive) to `end` (exclusive), in order; if keys are ordered within
   * groups, those of the group of the bounds.
   */
  def rangeScan(
      start: Option[UnsafeRow], end: Option[UnsafeRow], everyValue: Boolean = false): Iterator[UnsafeRowPair] = {
    val first = start.map(bound(_, leading = false)).orNull
    val last = end.map(bound(_, leading = false)).orNull
    if (!tree.order.hasGroups || start.isEmpty && end.isEmpty) {
      range(first, last, through = false, everyValue)
    } else if (end.isEmpty) {
      range(first, bound(start.get, leading = true), through = true, everyValue)
    } else {
      if (start.exists(!tree.order.areOfOneGroup(_, end.get))) {
        throw new IllegalArgumentException("keys with the timestamp last are ordered only among equal " +
          "leading columns: both ends of a range must have the same ones")
      }
      range(if (first == null) bound(end.get, leading = true) else first, last, through = false, everyValue)
    }
  }

  /** Returns the keys at and after the first one that starts with `prefixKey`. */
  def scanFrom(prefixKey: Option[UnsafeRow]): Iterator[UnsafeRowPair] =
    range(prefixKey.map(boundOf).orNull, null, through = false, everyValue = false)

  private def boundOf(prefixKey: UnsafeRow): OrderedTree.Bound =
    new OrderedTree.Bound(tree.order, tree.order.keyOf(prefixKey), leading = true)

  // Callers reuse their rows.
  private def bound(key: UnsafeRow, leading: Boolean): OrderedTree.Bound =
    new OrderedTree.Bound(tree.order, KeyOrder.copyOf(key), leading)

  private def rows(cursor: RowCursor, everyValue: Boolean): Iterator[UnsafeRowPair] =
    new RowIterator(cursor, viewToScan(), header, if (everyValue && hasLists) records.more else 0,
      new RowView(keyFields), newRow())

  private def range(
      start: OrderedTree.Bound, end: OrderedTree.Bound, through: Boolean, everyValue: Boolean)
    : Iterator[UnsafeRowPair] = {
    val view = viewToScan()
    // A short scan copies its offsets: a snapshot of the tree would make the next write copy nodes.
    val offsets = new Array[Long](TableScans.FewRows)
    val looking = new OrderedTree.Cursor(tree.current, view, header, start, end, through)
    var count = 0
    while (count < offsets.length && looking.advance()) {
      offsets(count) = looking.offset
      count += 1
    }
    rows(
      if (count < offsets.length) new OffsetsCursor(offsets, count)
      else new OrderedTree.Cursor(tree.snapshot(), view, header, start, end, through),
      everyValue)
  }

  private def groupScan(prefixKey: UnsafeRow, everyValue: Boolean): Iterator[UnsafeRowPair] = {
    if (groups == null) {
      throw new IllegalStateException("this column family has no prefix index")
    }
    val group = groups.find(prefixKey)
    if (group == Record.None) {
      Iterator.empty
    } else {
      // Later writes change the ring, but no record: copying the offsets isolates the scan.
      val members = groups.membersOf(group)
      rows(new OffsetsCursor(members, members.length), everyValue)
    }
  }
}

private object TableScans {
  /** A scan of fewer rows copies their offsets. */
  final val FewRows = 32
}
