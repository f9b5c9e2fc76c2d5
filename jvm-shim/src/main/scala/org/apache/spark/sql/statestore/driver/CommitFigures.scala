package org.apache.spark.sql.statestore.driver

import java.util.LinkedHashMap
import java.util.Map.Entry

import com.fasterxml.jackson.databind.JsonNode

/**
 * The merged files of a query, as of the last publication.
 *
 * @param logicalFiles   that are not discarded
 * @param physicalFiles  that contain them
 * @param liveBytes      of the logical files
 * @param storageBytes   of the physical files
 */
private[statestore] final case class MergedFigures(
    logicalFiles: Long, physicalFiles: Long, liveBytes: Long, storageBytes: Long)

private[statestore] object MergedFigures {
  /** Returns what the backend's answer to a publication says. */
  def of(reply: JsonNode): MergedFigures = MergedFigures(
    reply.path("mergedLogicalFiles").asLong, reply.path("mergedPhysicalFiles").asLong,
    reply.path("mergedLiveBytes").asLong, reply.path("mergedStorageBytes").asLong)
}

/**
 * The figures of commits that tasks have handed over and of the files that they are merged in, by the commit log of their query. On
 * the driver. Thread-safe.
 */
private[statestore] object CommitFigures {
  private final class Query {
    var run = ""
    // The newest version that was handed over. Later attempts at it come from tasks that Spark does not await.
    var newest = -1L
    var isSettled = true
    var oldestAt = 0L
    var merged: Option[MergedFigures] = None
  }

  private final val MostQueries = 1000

  // The one that was used longest ago first.
  private val queries = new LinkedHashMap[String, Query](16, 0.75f, true) {
    override def removeEldestEntry(eldest: Entry[String, Query]): Boolean = size > MostQueries
  }

  /** Records that a task has handed a commit over. */
  def handedOver(log: String, run: String, version: Long): Unit = synchronized {
    val query = queryOf(log)
    if (query.run != run) {
      query.run = run
      query.newest = -1L
    }
    if (version > query.newest) {
      query.newest = version
      if (query.isSettled) query.oldestAt = System.nanoTime()
      query.isSettled = false
    }
  }

  /** Records that the commits of a batch are durable, or that the batch has failed. */
  def settled(log: String): Unit = synchronized(Option(queries.get(log)).foreach(_.isSettled = true))

  /** Records the merged files as they are after a publication. */
  def published(log: String, merged: MergedFigures): Unit = synchronized(queryOf(log).merged = Some(merged))

  /** Returns the merged files of a query; None before its first publication in this application. */
  def mergedOf(log: String): Option[MergedFigures] = synchronized(Option(queries.get(log)).flatMap(_.merged))

  /** Returns the milliseconds since a run's oldest commit was handed over that is not durable yet; 0 if there is none. */
  def uncommittedAgeMs(log: String, run: String): Long = synchronized {
    val query = queries.get(log)
    if (query == null || query.isSettled || query.run != run) 0L else (System.nanoTime() - query.oldestAt) / 1000000
  }

  /** Removes all figures, when the application ends. */
  def clear(): Unit = synchronized(queries.clear())

  private def queryOf(log: String): Query = queries.computeIfAbsent(log, _ => new Query)
}
