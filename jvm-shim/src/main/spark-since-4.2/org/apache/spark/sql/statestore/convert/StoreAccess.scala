package org.apache.spark.sql.statestore.convert

import org.apache.spark.sql.execution.streaming.state._

/** Calls of a provider that other releases of Spark lack. */
private[convert] object StoreAccess {
  /** Opens an empty store to write the version after one; the flag is false if it writes version 1. */
  def openEmpty(provider: StateStoreProvider, version: Long): (StateStore, Boolean) = provider match {
    case _: HDFSBackedStateStoreProvider => (provider.getStore(0), version == 0)
    case _ => (provider.getStore(version, None, forceSnapshotOnCommit = true, loadEmpty = true), true)
  }

  /** Returns the names of a store's column families, if it knows them. */
  def familyNames(store: ReadStateStore): Option[Set[String]] = Some(store.allColumnFamilyNames)

  /** Returns all rows of a family, those of a key together and in order; the pair is valid until the next one. */
  def pairs(store: ReadStateStore, family: Family): Iterator[UnsafeRowPair] =
    if (family.hasLists) store.iteratorWithMultiValues(family.name) else store.iterator(family.name)
}
