package org.apache.spark.sql.statestore.provider

import java.util.concurrent.ConcurrentHashMap

import scala.util.control.NonFatal

import org.apache.spark.api.plugin.PluginContext
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.statestore.{BackendException, Errors}
import org.apache.spark.sql.statestore.backend.{CommitReply, Publication}
import org.apache.spark.sql.statestore.driver.{DriverConnection, DriverVersionName, FindBarrier, HandOver,
  HandedOverCommit, VersionsDiscarded}

/**
 * Hands the commits of an executor's stores over to the driver, which publishes those of a batch as one file. Flink's task
 * managers send small state to the job manager alike.
 *
 * Guarantees: a version that `publish` returned is on the driver or in storage, so that losing the executor costs nothing.
 */
private[statestore] object Handover {
  // By commit log and run.
  private val answers = new ConcurrentHashMap[(String, String), java.lang.Boolean]
  private final val MostAnswers = 1000

  /** True if the driver publishes the commits of a run; false without the plugin. */
  def isPossible(log: String, run: String): Boolean = DriverConnection.find().exists { driver =>
    if (answers.size > MostAnswers) answers.clear()
    answers.computeIfAbsent((log, run), _ =>
      ask(driver, s"a task of the query with the commit log $log", FindBarrier(log, run)))
  }

  def publish(log: String, run: String, id: StateStoreId, commit: StoreCommit): CommitReply = {
    val reply = commit.publish(Publication.HandedOver)
    val name = DriverVersionName(commit.version, commit.id, commit.attemptId, isCurrent = true)
    val path = s"${StoreLocation.belowState(id)}/${name.path}"
    val version = s"version ${commit.version} of operator ${id.operatorId}, partition ${id.partitionId}, store ${id.storeName} at " +
      id.storeCheckpointLocation()
    val isTaken = DriverConnection.find().exists(ask(_, version, HandOver(log, run, HandedOverCommit(
      commit.attemptId, commit.version, path, commit.client.describedStore, reply.metadata))))
    if (!isTaken) {
      throw new BackendException("EndedRun", s"$version is not committed: the run $run of its query has ended, or its application " +
        "has. Nothing is lost: the next run runs the batch again.")
    }
    reply
  }

  private def ask(driver: PluginContext, subject: String, message: AnyRef): Boolean =
    try driver.ask(message).asInstanceOf[Boolean] catch {
      case NonFatal(e) =>
        throw new BackendException("DriverConnection", s"$subject is not committed: the driver did not answer this executor: " +
          s"${Errors.clause(e)}. Nothing is lost: Spark runs the task again. Check the network between the two, and that both have " +
          "the same version of this package's jar.", e)
    }

  /** Tells the driver what was discarded of merged files, once: if that is lost, a later run discards it. */
  def discarded(log: String, run: String, paths: Array[String]): Unit =
    DriverConnection.find().foreach(_.send(VersionsDiscarded(log, run, paths)))
}
