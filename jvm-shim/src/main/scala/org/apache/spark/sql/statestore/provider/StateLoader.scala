package org.apache.spark.sql.statestore.provider

import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId}
import org.apache.spark.sql.statestore.backend.{CheckpointClient, ReplayStart}
import org.apache.spark.sql.statestore.families.{ColumnFamily, FamilySchema, FormatValidation}

/**
 * Reads versions of a store into memory.
 *
 * Guarantees: a state that `load` returns has the rows of its version, with the schema that the operator declares; if it fails,
 * nothing is kept in memory.
 *
 * @param schema       of the default column family, as the operator declares it
 * @param hasFamilies  whether the store has column families: then that schema is a dummy
 * @param store        names the store in messages
 */
private[statestore] final class StateLoader(
    client: CheckpointClient, id: StateStoreId, schema: FamilySchema, hasFamilies: Boolean, conf: StateStoreConf,
    store: String) {

  def empty(version: Long): LoadedState =
    new LoadedState(version, None, Seq(ColumnFamily.empty(schema, version)), None, versionsInMemory)

  def load(version: Long, ckptId: Option[String], from: Option[ReplayStart], counters: StoreCounters): LoadedState = {
    var families = Seq.empty[ColumnFamily]
    try {
      val found = client.load(version, ckptId, from, columnFamilies => {
        families.foreach(_.table.discard())
        families = columnFamilies.map { stored =>
          val isDefault = stored.path("name").asText == schema.name
          if (isDefault && !hasFamilies) FamilySchema.read(stored).requireKeyOrder(schema, store)
          val described = if (isDefault) schema else FamilySchema.read(stored)
          ColumnFamily.empty(described, stored.path("createdAtVersion").asLong)
        }
        families.map(_.table)
      })
      counters.roundTrips += 1
      counters.loadBytes += found.bytesRead
      families.foreach { family =>
        if (!hasFamilies) FormatValidation(family, id, conf)
        if (family.table.wantsCompaction) {
          family.table.compact()
          family.table.takeReplacedMemory().foreach(_.close())
          counters.compactions += 1
        }
      }
      new LoadedState(version, ckptId, families, Some(found.stored), versionsInMemory)
    } catch {
      case e: Throwable =>
        families.foreach(_.table.discard())
        throw e
    }
  }

  private def versionsInMemory: Int = math.max(2, conf.maxVersionsToRetainInMemory)
}
