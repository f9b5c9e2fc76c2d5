package org.apache.spark.sql.statestore.convert

import org.apache.spark.sql.execution.streaming.state._

/** Reads of stores with column families. */
private[convert] object FamilyReads {
  def open(provider: StateStoreProvider, version: Long, id: Option[String]): ReadStateStore =
    provider.getReadStore(version, id)

  def declare(store: ReadStateStore, family: Family): Unit = store.registerColFamily(
    family.name, family.keySchema, family.valueSchema, family.spec, family.hasLists, family.isInternal)

  def close(store: ReadStateStore): Unit = store.release()
}
