package org.apache.spark.sql.statestore.convert

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.compat.{ProviderSince42, ReadStoreSince42}

/** Calls of a provider that other releases of Spark lack. */
private[convert] object StoreAccess {
  /** Opens an empty store to write the version after one; the flag is false if it writes version 1. */
  def openEmpty(provider: StateStoreProvider, version: Long): (StateStore, Boolean) = provider match {
    case own: ProviderSince42 =>
      (own.getStore(version, None, forceSnapshotOnCommit = true, loadEmpty = true), true)
    case _ => (provider.getStore(0), version == 0)
  }

  /** Returns the names of a store's column families, if it knows them. */
  def familyNames(store: ReadStateStore): Option[Set[String]] = store match {
    case own: ReadStoreSince42 => Some(own.allColumnFamilyNames)
    case _ => None
  }

  /** Returns all rows of a family, those of a key together and in order; the pair is valid until the next one. */
  def pairs(store: ReadStateStore, family: Family): Iterator[UnsafeRowPair] =
    if (!family.hasLists) {
      store.iterator(family.name)
    } else {
      store.iterator(family.name).flatMap { pair =>
        val key = pair.key.copy()
        store.valuesIterator(key, family.name).map(new UnsafeRowPair(key, _))
      }
    }
}
