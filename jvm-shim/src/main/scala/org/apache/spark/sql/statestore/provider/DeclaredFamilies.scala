package org.apache.spark.sql.statestore.provider

import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.internal.Logging
import org.apache.spark.sql.statestore.CheckpointStateStoreProvider
import org.apache.spark.sql.statestore.families.{ColumnFamily, FamilySchema, ValueEvolution}

/**
 * Column families as operators and readers declare them.
 *
 * Guarantees: a declared schema fits the rows, or they are converted for it: by a writer in a family of its own, so that an abort or an
 * older version has the former one, by a reader for itself alone. What a writer declares changes the state that it writes to.
 *
 * @param provider  its lock guards the state in memory
 */
private[statestore] final class DeclaredFamilies(provider: CheckpointStateStoreProvider, evolution: ValueEvolution)
  extends Logging {

  // Empty families that a reader has declared and no version has.
  private val registered = new ConcurrentHashMap[String, ColumnFamily]

  /** Returns an empty family that a reader has declared; null if there is none. */
  def find(name: String): ColumnFamily = registered.get(name)

  /** Creates a column family, or adopts its new schema. */
  def create(of: LoadedState, createdAtVersion: Long, wanted: FamilySchema): Unit = {
    val present = of.family(wanted.name)
    if (present == null) provider.synchronized(of.create(wanted, createdAtVersion))
    else adopt(of, present, createdAtVersion, wanted)
  }

  private def adopt(of: LoadedState, present: ColumnFamily, createdAtVersion: Long, wanted: FamilySchema): Unit =
    evolution.conversion(present.schema, wanted) match {
      case Some(convert) =>
        val evolved = present.evolve(wanted, convert, createdAtVersion)
        logInfo(s"converted ${evolved.table.numValues} values of the column family ${wanted.name} from " +
          s"${present.schema.valueSchema.sql} to ${wanted.valueSchema.sql}: $provider")
        provider.synchronized(of.replace(evolved))
      case None => provider.synchronized(present.adopt(wanted, provider.toString))
    }

  /** Removes a column family with its rows; false if there is none. */
  def remove(of: LoadedState, name: String): Boolean = provider.synchronized(of.remove(name))

  /** Makes a column family known to a writer and the next readers of its provider. */
  def register(of: LoadedState, createdAtVersion: Long, wanted: FamilySchema): Unit = {
    val present = of.family(wanted.name)
    if (present == null) registered.put(wanted.name, ColumnFamily.empty(wanted, 0L))
    else adopt(of, present, createdAtVersion, wanted)
  }

  /**
   * Makes a column family known to the readers of a provider; returns it if its rows must be converted for this one.
   * Several readers may share the state, which is unchanged.
   */
  def registerForReading(of: LoadedState, version: Long, wanted: FamilySchema): Option[ColumnFamily] = {
    val present = of.family(wanted.name)
    if (present == null) {
      registered.put(wanted.name, ColumnFamily.empty(wanted, 0L))
      None
    } else {
      val converted = evolution.conversion(present.schema, wanted).map(present.evolve(wanted, _, version))
      if (converted.isEmpty) present.requireFitting(wanted, provider.toString)
      converted
    }
  }
}
