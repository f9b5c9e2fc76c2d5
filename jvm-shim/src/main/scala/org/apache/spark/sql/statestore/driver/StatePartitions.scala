package org.apache.spark.sql.statestore.driver

import java.util.{Collections, WeakHashMap}
import java.util.concurrent.ConcurrentHashMap

import scala.util.control.NonFatal

import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.statestore.{BackendCheckpointFileManager, InvalidOptionException,
  StateStoreExtensions}
import org.apache.spark.sql.statestore.compat.Since41
import org.apache.spark.sql.statestore.compat.Since41.StreamExecution
import org.apache.spark.sql.statestore.provider.BackendOptions

/**
 * The number of state partitions of a query, by the option `partitions`.
 *
 * Guarantees: a query whose checkpoint has another number is rescaled before it reads its logs, or fails before its first
 * task. A rescale that was interrupted is completed first, whatever the session has. No batch runs on the state of another
 * number of partitions. The driver's backend decides; without the option it is asked only if the logs show that something is
 * to be done.
 */
private[statestore] object StatePartitions extends Logging {
  private val failures = Collections.synchronizedMap(new WeakHashMap[StreamExecution, Throwable])
  // Locations whose rescale has begun, and was not seen to end: it may go on for some seconds.
  private val unfinished = ConcurrentHashMap.newKeySet[String]

  /** Rescales a query that has not read its logs yet, if its session wants it; returns its logs. */
  def settle(query: StreamExecution): QueryLogs = {
    val session = Since41.ownSession(query).getOrElse(query.sparkSession)
    val logs = new QueryLogs(query)
    val hasOption = BackendOptions.parse(session.conf.getAll).hasPartitions
    val mayGoOn = unfinished.contains(query.resolvedCheckpointRoot)
    if (isOurs(logs, session) && (hasOption || mayGoOn || logs.hasJournal || logs.haveOtherPartitions)) {
      try {
        unfinished.add(query.resolvedCheckpointRoot)
        rescale(query).filter(_ => logs.isNew).foreach { count =>
          Since41.ownSession(query).foreach(_.conf.set(SQLConf.SHUFFLE_PARTITIONS.key, count.toString))
        }
        unfinished.remove(query.resolvedCheckpointRoot)
      } catch {
        // A listener's exception is only logged.
        case NonFatal(e) => failures.put(query, e)
      }
      new QueryLogs(query)
    } else {
      logs
    }
  }

  /**
   * Fails for a query that `settle` could not rescale, and for a batch whose state has other partitions than the batch: another
   * driver has rescaled the query between the reads of its two logs.
   *
   * @throws InvalidOptionException  with the reason
   */
  def require(query: StreamExecution, batch: SparkPlan): Unit = {
    Option(failures.get(query)).foreach(e => throw new InvalidOptionException(e.getMessage, e))
    for {
      operator <- batch.collect { case stateful: SparkPlan with Since41.StatefulOperator => stateful }
      info <- operator.stateInfo
      ids <- info.stateStoreCkptIds
      // An operator without grouping columns has one partition.
      if ids.length > 1 && ids.length != info.numPartitions
    } throw new InvalidOptionException(
      s"the query at ${query.resolvedCheckpointRoot} was rescaled while it started: operator ${info.operatorId} has the state of " +
        s"${ids.length} partitions, and the batch has ${info.numPartitions}. Start one query at a time there, once more; nothing " +
        "was changed.")
  }

  private def isOurs(logs: QueryLogs, session: SparkSession): Boolean =
    logs.hasJournal || logs.provider.orElse(session.conf.getOption(SQLConf.STATE_STORE_PROVIDER_CLASS.key))
      .exists(StateStoreExtensions.isOurs)

  private def rescale(query: StreamExecution): Option[Int] = {
    val files = BackendCheckpointFileManager.clientOf(query.sparkSession.sessionState.newHadoopConf())
    val checkpoint = new Path(query.resolvedCheckpointRoot)
    def ask() = files.settlePartitions(checkpoint, Option(query.name), query.runId, CheckpointFormat.canBeV2(query))
    var answer = ask()
    while (!answer.path("isComplete").asBoolean) {
      logInfo(s"the state of the query at $checkpoint is rescaled before its first batch: ${answer.path("done").asInt} of " +
        s"${answer.path("total").asInt} stores are written")
      answer = ask()
    }
    Some(answer.path("partitions")).filter(_.isInt).map(_.asInt)
  }
}
