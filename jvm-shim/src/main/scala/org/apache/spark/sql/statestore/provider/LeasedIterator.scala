package org.apache.spark.sql.statestore.provider

import org.apache.spark.sql.statestore.table.ReadLease

/** Iterator over rows of a table that fails, instead of reading unmapped memory, once its store's lease is closed. */
private[statestore] final class LeasedIterator[T](lease: ReadLease, rows: Iterator[T]) extends Iterator[T] {

  override def hasNext: Boolean = if (lease.isOwner) rows.hasNext else pinnedHasNext()

  override def next(): T = if (lease.isOwner) rows.next() else pinnedNext()

  private def pinnedHasNext(): Boolean = {
    val pinned = lease.enter()
    try rows.hasNext finally lease.exit(pinned)
  }

  private def pinnedNext(): T = {
    val pinned = lease.enter()
    try rows.next() finally lease.exit(pinned)
  }
}
