package org.apache.spark.sql.statestore

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._

/** Spark's interfaces of the newest release, which this Spark has, so that Spark's own stores have them as well. */
private[statestore] object Newest {
  type ReadStore = ReadStateStore
  type WriteStore = StateStore

  def provider(storeProvider: StateStoreProvider): StateStoreProvider = storeProvider

  def replay(storeProvider: StateStoreProvider): SupportsFineGrainedReplay = storeProvider.asInstanceOf[SupportsFineGrainedReplay]

  def reading(store: ReadStateStore): ReadStore = store

  def writing(store: StateStore): WriteStore = store

  def reusableIterator(store: ReadStateStore, family: String): ReusableIterator[UnsafeRowPair] =
    store.asInstanceOf[SupportsReusableIterator].reusableIterator(family)

  def seek(iterator: Iterator[UnsafeRowPair], prefix: UnsafeRow): Unit =
    iterator.asInstanceOf[ReusableIterator[UnsafeRowPair]].refreshAndSeekToPrefix(prefix)
}
