package org.apache.spark.sql.statestore.provider

import org.apache.spark.sql.statestore.backend.StoredVersion
import org.apache.spark.sql.statestore.families.ColumnFamily
import org.apache.spark.sql.statestore.table.Log

/**
 * The tails of the logs of a store's column families at the versions between which its stored streams have the
 * changes: the changes of adjacent streams are one slice of each log, so that a run of them is written from memory.
 *
 * Guarantees: a version that is known has not been rolled back, and its tails are valid offsets. Versions before a
 * load or a compaction are not known. Not thread-safe.
 */
private[provider] final class LogSlices {
  // By version, the tails by name and creation of the family: a reference to it would keep its memory.
  private val tails = new java.util.TreeMap[java.lang.Long, Map[(String, Long), Long]]

  /** Adds a version that the tables have now. */
  def add(version: CommittedVersion): Unit =
    tails.put(version.version, version.families.map(f => idOf(f.family) -> f.content.tail).toMap)

  /** Drops the versions after one that was rolled back to. */
  def dropAfter(version: Long): Unit = tails.tailMap(version, false).clear()

  /** Drops all versions: offsets have changed. */
  def clear(): Unit = tails.clear()

  /** Drops the versions at which no stream of a new version ends. */
  def keep(stored: StoredVersion): Unit = stored.versions.lastOption.foreach { newest =>
    val ends = stored.versions.toSet + stored.baseVersion
    tails.headMap(newest, true).keySet.removeIf(version => !ends.contains(version))
  }

  /** Returns the oldest version at which a stream of a version ends and since which all changes are known. */
  def knownSince(stored: StoredVersion): Option[Long] = {
    val ends = stored.baseVersion +: stored.versions
    var oldest = ends.length
    while (oldest > 0 && isKnown(ends(oldest - 1))) oldest -= 1
    ends.lift(oldest)
  }

  def isKnown(version: Long): Boolean = tails.containsKey(version)

  /** Returns the tail of a family's log at a known version, the start of the log if the family was created later. */
  def tailOf(version: Long, family: ColumnFamily): Long =
    tails.get(version).getOrElse(idOf(family), Log.FirstOffset)

  private def idOf(family: ColumnFamily): (String, Long) = (family.name, family.createdAtVersion)
}
