package org.apache.spark.sql.statestore.provider

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{ReusableIterator, SupportsReusableIterator,
  UnsafeRowPair}
import org.apache.spark.sql.statestore.table.{ReadLease, StateTable}

/**
 * Reusable iterator over an ordered column family: it starts at the first key, and each seek sees the
 * writes made until then.
 */
private[statestore] final class SeekingIterator(table: () => StateTable, lease: ReadLease)
  extends ReusableIterator[UnsafeRowPair] {

  private var rows = scanFrom(None)

  override def refreshAndSeekToPrefix(prefixRow: UnsafeRow): Unit = rows = scanFrom(Some(prefixRow))

  override def hasNext: Boolean = rows.hasNext

  override def next(): UnsafeRowPair = rows.next()

  override def close(): Unit = rows = Iterator.empty

  private def scanFrom(prefix: Option[UnsafeRow]): Iterator[UnsafeRowPair] = {
    val pinned = lease.enter()
    try new LeasedIterator(lease, table().scanFrom(prefix)) finally lease.exit(pinned)
  }
}

/** Reusable iterators of a store, which Spark asks for since 4.3. */
private[statestore] trait ReusableScans extends SupportsReusableIterator {
  this: LoadedStateReader =>

  override def reusableIterator(colFamilyName: String): ReusableIterator[UnsafeRowPair] =
    leased(new SeekingIterator(() => orderedTable("reusableIterator", colFamilyName), lease))
}
