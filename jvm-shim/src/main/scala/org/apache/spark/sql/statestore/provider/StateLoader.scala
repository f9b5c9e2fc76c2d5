package org.apache.spark.sql.statestore.provider

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId}
import org.apache.spark.sql.statestore.arrow.UnreadableChangesException
import org.apache.spark.sql.statestore.backend.{CheckpointClient, LoadedVersion, LoadStart, ReplayStart}
import org.apache.spark.sql.statestore.families.{ColumnFamily, FamilySchema, FamilySnapshot, FormatValidation}
import org.apache.spark.sql.statestore.table.{StateTable, TableMemory}

/**
 * Reads versions of a store into memory.
 *
 * Guarantees: a state that `load` returns has the rows of its version, with the schema that the operator declares; if it fails,
 * nothing is kept in memory.
 *
 * @param schema       of the default column family, as the operator declares it
 * @param hasFamilies  whether the store has column families: then that schema is a dummy
 * @param store        names the store in messages
 * @param maxCopyBytes most bytes of local copies
 */
private[statestore] final class StateLoader(
    client: CheckpointClient, id: StateStoreId, schema: FamilySchema, hasFamilies: Boolean, conf: StateStoreConf,
    store: String, maxCopyBytes: Long) {

  def empty(version: Long): LoadedState =
    new LoadedState(version, None, Seq(ColumnFamily.empty(schema, version)), None, versionsInMemory)

  /**
   * Loads a version.
   *
   * @param earlier  the state in memory at an earlier version, not in use: if the version builds on it, the later changes alone
   *                 are read and applied to it. It is dropped otherwise
   */
  def load(
      version: Long, ckptId: Option[String], from: Option[ReplayStart], counters: StoreCounters,
      earlier: Option[LoadedState] = None): LoadedState = {
    var families = Seq.empty[ColumnFamily]
    var inMemory = earlier
    try {
      val earlierId = earlier.map(state => (state.newest.version, state.newest.stored.get.attemptId))
      val loadedVersion = client.load(version, ckptId, from, earlierId, (columnFamilies, start) => if (start == LoadStart.InMemory) {
        tablesInMemory(inMemory, columnFamilies)
      } else {
        inMemory.foreach(_.drop())
        inMemory = None
        families.foreach(_.table.discard())
        families = Nil
        val copy = start match {
          case LoadStart.Copy(opened) => Some(opened)
          case _ => None
        }
        columnFamilies.foreach { stored =>
          val isDefault = stored.path("name").asText == schema.name
          if (isDefault && !hasFamilies) FamilySchema.read(stored).requireKeyOrder(schema, store)
          val described = if (isDefault) schema else FamilySchema.read(stored)
          val createdAtVersion = stored.path("createdAtVersion").asLong
          families :+= copy.fold(ColumnFamily.empty(described, createdAtVersion))(ColumnFamily.of(described, createdAtVersion, _))
        }
        families.map(_.table)
      })
      counters.roundTrips += 1
      counters.loadBytes += loadedVersion.bytesRead
      if (loadedVersion.usedCopy) counters.localCopies += 1
      // Any other start has dropped it.
      inMemory.fold(loaded(version, ckptId, families, loadedVersion, counters))(_.advance(version, ckptId, loadedVersion.stored))
    } catch {
      case e: Throwable =>
        inMemory.foreach(_.drop())
        families.foreach(_.table.discard())
        throw e
    }
  }

  // Before a second try the changes of the first one are undone.
  private def tablesInMemory(earlier: Option[LoadedState], described: Seq[JsonNode]): Seq[StateTable] = {
    val state = earlier.getOrElse(throw new UnreadableChangesException("the earlier version is not in memory any more"))
    state.rollback()
    val familyKeys = described.map(family => (family.path("name").asText, family.path("createdAtVersion").asLong))
    if (familyKeys.toSet != state.families.map(family => (family.name, family.createdAtVersion)).toSet) {
      throw new UnreadableChangesException("column families were created or removed since the version in memory")
    }
    familyKeys.map { case (name, _) => state.family(name).table }
  }

  private def loaded(
      version: Long, ckptId: Option[String], families: Seq[ColumnFamily], loadedVersion: LoadedVersion, counters: StoreCounters)
      : LoadedState = {
    var replaced = Seq.empty[TableMemory]
    val copied = loadedVersion.copyRequest.map { case (place, base) =>
      (place, families.zip(base).map { case (family, content) => new FamilySnapshot(family, content).copied })
    }
    families.foreach { family =>
      if (!hasFamilies) FormatValidation(family, id, conf)
      if (family.table.wantsCompaction) {
        family.table.compact()
        replaced = replaced ++ family.table.takeReplacedMemory()
        counters.compactions += 1
      }
    }
    val loaded = new LoadedState(version, ckptId, families, Some(loadedVersion.stored), versionsInMemory)
    // A copy reads the tables as they were before a compaction.
    def free(): Unit = replaced.foreach(_.close())
    copied.fold(free()) { case (place, content) =>
      val endLease = loaded.leaseInBackground()
      LocalCopies.write(place, content, maxCopyBytes, () => true, () => {
        free()
        endLease()
      })
    }
    loaded
  }

  private def versionsInMemory: Int = math.max(2, conf.maxVersionsToRetainInMemory)
}
