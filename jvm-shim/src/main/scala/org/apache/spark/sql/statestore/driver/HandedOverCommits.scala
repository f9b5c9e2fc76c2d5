package org.apache.spark.sql.statestore.driver

import java.io.ByteArrayOutputStream
import java.util.{HashMap, LinkedHashMap}

import scala.collection.mutable.ArrayBuffer
import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.statestore.BackendException
import org.apache.spark.sql.statestore.backend.{Backend, CheckpointClient}
import org.apache.spark.sql.statestore.provider.CommitCollector

/**
 * The commits that executors have handed over to this driver, by the commit log of their query and its run.
 *
 * Guarantees: `barrier` publishes the attempts that Spark accepted for a batch, in one file, and fails if one of them was not
 * handed over. In checkpoint format v2 only, whose commit log names the attempts. Thread-safe.
 */
private[statestore] object HandedOverCommits {
  private val queries = new HashMap[String, Query]

  private final class Query(val run: String) {
    val begunAt: Long = System.nanoTime()
    val commits = new LinkedHashMap[String, HandedOverCommit]
    val discarded = new ArrayBuffer[String]
    // Those of the last batch: an operator that a batch skips keeps its ids.
    var published: Set[String] = Set.empty
  }

  /** Begins to take the commits of a run; false if it adds batches to its commit log without a barrier. */
  def begin(log: String, run: String): Boolean =
    CommitCollector.hasBarrier(log, run) && synchronized {
      val known = queries.get(log)
      // Only one run of a query is active.
      if (known == null || known.run != run) queries.put(log, new Query(run))
      true
    }

  /** Takes a commit; false if its run has ended, which executors may outlive. */
  def take(log: String, run: String, commit: HandedOverCommit): Boolean = synchronized {
    val query = of(log, run)
    query.foreach(_.commits.put(commit.attemptId, commit))
    if (query.isDefined) CommitFigures.handedOver(log, run, commit.version)
    query.isDefined
  }

  def discarded(log: String, run: String, paths: Array[String]): Unit = synchronized {
    of(log, run).foreach(_.discarded ++= paths)
  }

  private def of(log: String, run: String): Option[Query] = Option(queries.get(log)).filter(_.run == run)

  /**
   * Publishes the attempts in an entry of a commit log, if their run hands commits over.
   *
   * @param since    when the log was opened, as of `System.nanoTime`: earlier runs do not count
   * @param entry    the content
   * @param backend  the driver's backend, which publishes
   */
  def barrier(log: String, since: Long, entry: Iterator[Array[Byte]], backend: => Backend): Unit = {
    val query = synchronized(queries.get(log))
    if (query != null && query.begunAt - since >= 0) {
      val accepted = acceptedIn(entry)
      val commits = accepted.filterNot(query.published).map(id => synchronized(query.commits.get(id)) match {
        case null => throw missing(log, id)
        case commit => commit
      })
      if (commits.nonEmpty) publish(query, commits, backend)
      synchronized {
        query.published = accepted.toSet
        // With the attempts at these versions that Spark did not accept.
        commits.map(_.version).maxOption.foreach(newest => query.commits.values.removeIf(_.version <= newest))
      }
    }
  }

  private def publish(query: Query, commits: Seq[HandedOverCommit], backend: Backend): Unit = {
    val merged = commits.filter(_.metadata != null)
    val discarded = synchronized(query.discarded.toList)
    if (merged.nonEmpty || discarded.nonEmpty) {
      val store = CheckpointClient.mapper.readTree(commits.head.store).asInstanceOf[ObjectNode]
      new CheckpointClient(backend, store, None)
        .publish(merged.map(_.attemptId), merged.map(commit => (commit.path, commit.metadata)), discarded)
      synchronized(query.discarded.remove(0, discarded.size))
    }
  }

  private def missing(log: String, id: String): BackendException =
    new BackendException("MissingCommit", s"a batch of $log is not committed: its attempt $id was not handed over by any executor, " +
      "as if one had not loaded the plugin. Nothing is lost: the query, started again, runs the batch again. If that " +
      s"does not help, set spark.sql.streaming.stateStore.backend.commit=task, or ${DriverCheckpointStore.PluginLine} for all executors.")

  private def acceptedIn(entry: Iterator[Array[Byte]]): Seq[String] = {
    val bytes = new ByteArrayOutputStream
    entry.foreach(bytes.write(_))
    // A version, then a JSON object, on lines of their own.
    val text = bytes.toString("UTF-8")
    val described = CheckpointClient.mapper.readTree(text.substring(text.indexOf('\n') + 1)).path("stateUniqueIds")
    val found = new ArrayBuffer[String]
    def collect(node: JsonNode): Unit =
      if (node.isTextual) found += node.asText else node.elements.asScala.foreach(collect)
    collect(described)
    found.toSeq.distinct
  }
}
