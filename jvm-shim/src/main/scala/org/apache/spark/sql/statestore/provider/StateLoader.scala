package org.apache.spark.sql.statestore.provider

import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId}
import org.apache.spark.sql.statestore.backend.{CheckpointClient, ReplayStart}
import org.apache.spark.sql.statestore.families.{ColumnFamily, FamilySchema, FamilySnapshot, FormatValidation}
import org.apache.spark.sql.statestore.table.TableMemory

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

  def load(version: Long, ckptId: Option[String], from: Option[ReplayStart], counters: StoreCounters): LoadedState = {
    var families = Seq.empty[ColumnFamily]
    try {
      val found = client.load(version, ckptId, from, (columnFamilies, copy) => {
        families.foreach(_.table.discard())
        families = Nil
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
      counters.loadBytes += found.bytesRead
      if (found.usedCopy) counters.localCopies += 1
      var replaced = Seq.empty[TableMemory]
      val copied = found.wanted.map { case (place, base) =>
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
      val loaded = new LoadedState(version, ckptId, families, Some(found.stored), versionsInMemory)
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
    } catch {
      case e: Throwable =>
        families.foreach(_.table.discard())
        throw e
    }
  }

  private def versionsInMemory: Int = math.max(2, conf.maxVersionsToRetainInMemory)
}
