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

  /** Begins to take the commits of a run; false if it has ended, or adds batches to its commit log without a barrier. */
  def begin(log: String, run: String): Boolean =
    CommitCollector.hasBarrier(log, run) && synchronized {
      val query = queries.get(log)
      if (query == null || query.run != run) {
        queries.entrySet.removeIf(entry => !CommitCollector.hasBarrier(entry.getKey, entry.getValue.run))
        queries.put(log, new Query(run))
      }
      true
    }

  /** Forgets the commits of a run that has ended. */
  def ended(run: String): Unit = synchronized(queries.values.removeIf(_.run == run))

  /** Takes a commit; false if its run has ended, which executors may outlive. */
  def take(log: String, run: String, commit: HandedOverCommit): Boolean = synchronized {
    val query = queryOf(log, run)
    query.foreach(_.commits.put(commit.attemptId, commit))
    if (query.isDefined) CommitFigures.handedOver(log, run, commit.version)
    query.isDefined
  }

  def discarded(log: String, run: String, paths: Array[String]): Unit = synchronized {
    queryOf(log, run).foreach(_.discarded ++= paths)
  }

  private def queryOf(log: String, run: String): Option[Query] = Option(queries.get(log)).filter(_.run == run)

  /**
   * Publishes the attempts in an entry of a commit log, if their run hands commits over.
   *
   * @param batch    name of the entry
   * @param since    when the log was opened, as of `System.nanoTime`: earlier runs do not count
   * @param entry    the content
   * @param backend  the driver's backend, which publishes
   */
  def barrier(log: String, batch: String, since: Long, entry: Iterator[Array[Byte]], backend: => Backend): Unit = {
    val query = synchronized(queries.get(log))
    if (query != null && query.begunAt - since >= 0) {
      val accepted = acceptedIn(entry)
      val unpublished = accepted.filterNot(attempt => query.published(attempt.id))
      val commits = unpublished.map(attempt => synchronized(query.commits.get(attempt.id)) match {
        case null => throw missing(log, batch, attempt)
        case commit => commit
      })
      if (commits.nonEmpty) publish(query, commits, backend)
      synchronized {
        query.published = accepted.map(_.id).toSet
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
        .publish(commits.map(_.version).max, merged.map(_.attemptId), merged.map(commit => (commit.path, commit.metadata)), discarded)
      synchronized(query.discarded.remove(0, discarded.size))
    }
  }

  private def missing(log: String, batch: String, attempt: Accepted): BackendException =
    new BackendException("MissingCommit", s"batch $batch of $log is not committed: Spark accepted the attempt ${attempt.id} of " +
      s"operator ${attempt.operator}, partition ${attempt.partition}, which no executor has handed over, as if the one that ran it " +
      "had not loaded the plugin. Nothing is lost: the query, started again, runs the batch again. If that does not help, set " +
      s"spark.sql.streaming.stateStore.backend.commit=task, or ${DriverCheckpointStore.PluginLine} for all executors.")

  private final case class Accepted(operator: String, partition: Int, id: String)

  private def acceptedIn(entry: Iterator[Array[Byte]]): Seq[Accepted] = {
    val bytes = new ByteArrayOutputStream
    entry.foreach(bytes.write(_))
    // A version, then a JSON object, on lines of their own. It has the attempts by operator, partition and store.
    val text = bytes.toString("UTF-8")
    val described = CheckpointClient.mapper.readTree(text.substring(text.indexOf('\n') + 1)).path("stateUniqueIds")
    val attempts = for {
      operator <- described.fieldNames.asScala.toSeq
      (stores, partition) <- described.get(operator).elements.asScala.zipWithIndex
      id <- texts(stores)
    } yield Accepted(operator, partition, id)
    attempts.distinctBy(_.id)
  }

  private def texts(node: JsonNode): Seq[String] =
    if (node.isTextual) Seq(node.asText) else node.elements.asScala.flatMap(texts).toSeq
}
