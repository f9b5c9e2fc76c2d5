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
  def create(state: LoadedState, createdAtVersion: Long, declaredSchema: FamilySchema): Unit = {
    val present = state.family(declaredSchema.name)
    if (present == null) provider.synchronized(state.create(declaredSchema, createdAtVersion))
    else adopt(state, present, createdAtVersion, declaredSchema)
  }

  private def adopt(state: LoadedState, present: ColumnFamily, createdAtVersion: Long, declaredSchema: FamilySchema): Unit =
    evolution.conversion(present.schema, declaredSchema) match {
      case Some(convert) =>
        val evolved = present.evolve(declaredSchema, convert, createdAtVersion)
        logInfo(s"converted ${evolved.table.numValues} values of the column family ${declaredSchema.name} from " +
          s"${present.schema.valueSchema.sql} to ${declaredSchema.valueSchema.sql}: $provider")
        provider.synchronized(state.replace(evolved))
      case None => provider.synchronized(present.adopt(declaredSchema, provider.toString))
    }

  /** Removes a column family with its rows; false if there is none. */
  def remove(state: LoadedState, name: String): Boolean = provider.synchronized(state.remove(name))

  /** Makes a column family known to a writer and the next readers of its provider. */
  def register(state: LoadedState, createdAtVersion: Long, declaredSchema: FamilySchema): Unit = {
    val present = state.family(declaredSchema.name)
    if (present == null) registered.put(declaredSchema.name, ColumnFamily.empty(declaredSchema, 0L))
    else adopt(state, present, createdAtVersion, declaredSchema)
  }

  /**
   * Makes a column family known to the readers of a provider; returns it if its rows must be converted for this one.
   * Several readers may share the state, which is unchanged.
   */
  def registerForReading(state: LoadedState, version: Long, declaredSchema: FamilySchema): Option[ColumnFamily] = {
    val present = state.family(declaredSchema.name)
    if (present == null) {
      registered.put(declaredSchema.name, ColumnFamily.empty(declaredSchema, 0L))
      None
    } else {
      val converted = evolution.conversion(present.schema, declaredSchema).map(present.evolve(declaredSchema, _, version))
      if (converted.isEmpty) present.requireFitting(declaredSchema, provider.toString)
      converted
    }
  }
}
