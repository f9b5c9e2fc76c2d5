package org.apache.spark.sql.statestore

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{ReusableIterator, UnsafeRowPair}
import org.apache.spark.sql.statestore.table.StateTable

/**
 * One iterator over an ordered column family for the whole of a task: it starts at the first key,
 * and each seek shows the family as it is by then.
 */
private[statestore] final class SeekingIterator(table: () => StateTable) extends ReusableIterator[UnsafeRowPair] {
  private var rows = table().scanFrom(None)

  override def refreshAndSeekToPrefix(prefixRow: UnsafeRow): Unit = rows = table().scanFrom(Some(prefixRow))

  override def hasNext: Boolean = rows.hasNext

  override def next(): UnsafeRowPair = rows.next()

  override def close(): Unit = rows = Iterator.empty
}
