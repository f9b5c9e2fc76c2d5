package org.apache.spark.sql.statestore.table

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair

/**
 * What a table gives row by row: everything, a prefix, a range.
 *
 * Guarantees: an iterator shows the table as it was when the iterator was made, and nothing of later writes. The pair
 * and its rows are reused.
 */
private[statestore] trait TableScans { table: StateTable =>

  /**
   * Every key with its first value, as of now: in order where there is one, else as they came.
   *
   * @param everyValue  gives all values of each key, here and below
   */
  def iterator(everyValue: Boolean = false): Iterator[UnsafeRowPair] =
    if (tree != null) range(null, null, through = false, everyValue)
    else rows(new LogCursor(scan(records.log.view)), everyValue)

  /** Every key with its first value, as of now; where there are prefixes, the keys of each one together. */
  def groupedIterator(): Iterator[UnsafeRowPair] =
    if (groups == null) {
      iterator()
    } else {
      val offsets = new Array[Long](math.toIntExact(keys))
      var count = 0
      val heads = scan(records.log.view)
      while (heads.advance()) {
        if (heads.kind == Record.Group) {
          val members = groups.membersOf(heads.offset)
          System.arraycopy(members, 0, offsets, count, members.length)
          count += members.length
        }
      }
      rows(new OffsetsCursor(offsets, count), everyValue = false)
    }

  /** The keys that start with `prefixKey`, as of now. */
  def prefixScan(prefixKey: UnsafeRow, everyValue: Boolean = false): Iterator[UnsafeRowPair] =
    if (tree != null) {
      val prefix = bound(tree.order.keyOf(prefixKey), leading = true)
      range(prefix, prefix, through = true, everyValue)
    } else {
      groupScan(prefixKey, everyValue)
    }

  /**
   * The keys from `start` on and before `end`, in order, as of now; where keys are in groups, those of
   * the group that the bounds are in.
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
        throw new IllegalArgumentException("keys with a timestamp last have no order among each other: " +
          "both ends of a range must have the same columns before it")
      }
      range(if (first == null) bound(end.get, leading = true) else first, last, through = false, everyValue)
    }
  }

  /** The keys from the first one on that starts with `prefixKey`, or comes after those, as of now. */
  def scanFrom(prefixKey: Option[UnsafeRow]): Iterator[UnsafeRowPair] =
    range(
      prefixKey.map(key => bound(tree.order.keyOf(key), leading = true)).orNull,
      null, through = false, everyValue = false)

  private def bound(key: UnsafeRow, leading: Boolean): OrderedTree.Bound =
    new OrderedTree.Bound(tree.order, key, leading)

  private def rows(cursor: RowCursor, everyValue: Boolean): Iterator[UnsafeRowPair] =
    new RowIterator(cursor, records.log.view, header, if (everyValue && hasLists) records.more else 0,
      new UnsafeRow(keyFields), new UnsafeRow(valueFields))

  private def range(
      start: OrderedTree.Bound, end: OrderedTree.Bound, through: Boolean, everyValue: Boolean)
    : Iterator[UnsafeRowPair] = {
    val view = records.log.view
    // Few offsets are noted: nodes in a snapshot would have to be copied by the next write.
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
      // The ring changes under later writes, records do not: noting the offsets isolates the scan.
      val members = groups.membersOf(group)
      rows(new OffsetsCursor(members, members.length), everyValue)
    }
  }
}

private object TableScans {
  /** A scan of fewer rows notes where they lie. */
  final val FewRows = 32
}
