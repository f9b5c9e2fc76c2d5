package org.apache.spark.sql.statestore.driver

import java.util.UUID

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.hadoop.fs.Path

import org.apache.spark.SparkContext
import org.apache.spark.internal.Logging
import org.apache.spark.scheduler.{SparkListener, SparkListenerApplicationEnd, SparkListenerBlockManagerAdded, SparkListenerEvent,
  SparkListenerExecutorRemoved}
import org.apache.spark.sql.classic
import org.apache.spark.sql.statestore.backend.ClosedStores
import org.apache.spark.sql.statestore.provider.{CommitCollector, StoreLocation, StoreMetrics}
import org.apache.spark.sql.streaming.{StateOperatorProgress, StreamingQueryProgress}
import org.apache.spark.sql.streaming.StreamingQueryListener.{QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent}

/**
 * The figures of a stateful operator in a batch.
 *
 * @param values  by the names that `StreamingQueryProgress` has for them; of a class that JSON keeps
 */
private[statestore] final case class OperatorFigures(name: String, partitions: Long, values: Map[String, java.lang.Long]) {
  def apply(figure: String): Option[Long] = values.get(figure).map(_.longValue)
}

/** @param commitLogMs  of its duration: until Spark's commit log had the batch, with the wait for commits that tasks handed over */
private[statestore] final case class BatchFigures(
    batchId: Long, timestamp: String, durationMs: Long, commitLogMs: Long, operators: IndexedSeq[OperatorFigures])

/**
 * A streaming query of the application, with its last batches.
 *
 * @param restarts  restarts of backends during all of its batches
 * @param retries   retries of storage calls during all of its batches
 * @param repaired  damaged streams that loads replaced during all of its batches
 * @param error     the exception that ended its last run
 */
private[statestore] final case class MonitoredQuery(
    id: UUID, runId: UUID, name: Option[String], isActive: Boolean, runs: Int, checkpoint: Option[String],
    batches: Vector[BatchFigures], restarts: Long, retries: Long, repaired: Long, error: Option[String]) {

  def title: String = name.getOrElse(id.toString)

  def last: Option[BatchFigures] = batches.lastOption

  /** Its merged files as of now; None if it has none, or ran in another application. */
  def merged: Option[MergedFigures] = commitLog.flatMap(CommitFigures.mergedOf)

  /** Milliseconds since the oldest commit was handed over that is not durable yet. */
  def uncommittedAgeMs: Option[Long] = commitLog.map(CommitFigures.uncommittedAgeMs(_, runId.toString))

  private def commitLog: Option[String] = checkpoint.map(new Path(_, StoreLocation.CommitLog).toString)
}

/**
 * Keeps the last figures of an application's streaming queries, for the UI and for metrics systems, and frees what is kept of runs that
 * have ended. It works on the thread of Spark's listeners alone, from what Spark reports of each batch.
 */
private[statestore] final class QueryMonitor extends SparkListener with Logging {
  import QueryMonitor._

  // In the order of their first start.
  private val queriesById = mutable.LinkedHashMap.empty[UUID, MonitoredQuery]
  @volatile private var metrics: Option[QueryMetrics] = None

  /** Returns the queries, the newest first. */
  def queries: Seq[MonitoredQuery] = synchronized(queriesById.values.toVector).reverse

  def find(id: UUID): Option[MonitoredQuery] = synchronized(queriesById.get(id))

  /** Keeps the metrics of active queries up to date from now on. */
  def register(to: QueryMetrics): Unit = metrics = Some(to)

  override def onApplicationEnd(event: SparkListenerApplicationEnd): Unit = end(this)

  // When it can get tasks; `onExecutorAdded` comes earlier.
  override def onBlockManagerAdded(event: SparkListenerBlockManagerAdded): Unit = Rebalancer.executorsChanged()

  override def onExecutorRemoved(event: SparkListenerExecutorRemoved): Unit = Rebalancer.executorsChanged()

  override def onOtherEvent(event: SparkListenerEvent): Unit =
    try {
      event match {
        case started: QueryStartedEvent => update(started.id)(start(_, started))
        case progress: QueryProgressEvent => update(progress.progress.id)(add(_, progress.progress))
        case ended: QueryTerminatedEvent =>
          CommitCollector.ended(ended.runId.toString)
          HandedOverCommits.ended(ended.runId.toString)
          ClosedStores.ended(ended.runId.toString)
          Rebalancer.ended(ended.runId.toString)
          update(ended.id)(_.map(_.copy(isActive = false, error = ended.exception.map(_.take(MaxErrorLength)))))
        case _ =>
      }
    } catch {
      case NonFatal(e) => logWarning("the figures of a streaming query are not shown", e)
    }

  private def update(id: UUID)(change: Option[MonitoredQuery] => Option[MonitoredQuery]): Unit = {
    val (changed, dropped) = synchronized {
      val changed = change(queriesById.get(id))
      changed.foreach(queriesById.update(id, _))
      (changed, if (queriesById.size > MaxQueries) dropOne() else None)
    }
    metrics.foreach { to =>
      dropped.foreach(to.remove)
      changed.foreach(query => if (query.isActive) to.add(query) else to.remove(query.id))
    }
  }

  private def dropOne(): Option[UUID] = {
    val oldest = queriesById.values.find(!_.isActive).orElse(queriesById.values.headOption).map(_.id)
    oldest.foreach(queriesById.remove)
    oldest
  }

  private def start(query: Option[MonitoredQuery], event: QueryStartedEvent): Option[MonitoredQuery] = {
    val fresh = MonitoredQuery(
      event.id, event.runId, Option(event.name), isActive = true, runs = 1, checkpointOf(event.id), Vector.empty, 0L, 0L, 0L, None)
    Some(query.fold(fresh)(old => old.copy(
      runId = event.runId, name = fresh.name, isActive = true, runs = old.runs + 1, checkpoint = fresh.checkpoint,
      error = None)))
  }

  private def add(query: Option[MonitoredQuery], progress: StreamingQueryProgress): Option[MonitoredQuery] = {
    // Without its start it began before the monitor did.
    val before = query.getOrElse(MonitoredQuery(
      progress.id, progress.runId, Option(progress.name), isActive = true, runs = 1, None, Vector.empty, 0L, 0L, 0L, None))
    val operators = progress.stateOperators.toVector.map(figures)
    val commitLogMs = Option(progress.durationMs.get("commitOffsets")).fold(0L)(_.longValue)
    val batch = BatchFigures(progress.batchId, progress.timestamp, progress.batchDuration, commitLogMs, operators)
    def sum(name: String) = operators.flatMap(_(name)).sum
    Some(before.copy(
      checkpoint = before.checkpoint.orElse(checkpointOf(progress.id)),
      batches = (before.batches :+ batch).takeRight(MaxBatches),
      restarts = before.restarts + sum(StoreMetrics.Restarts.name),
      retries = before.retries + sum(StoreMetrics.StorageRetries.name),
      repaired = before.repaired + sum(StoreMetrics.StreamsRepaired.name)))
  }

  private def figures(operator: StateOperatorProgress): OperatorFigures =
    OperatorFigures(operator.operatorName, operator.numShufflePartitions, Map(
      RowsTotal -> Long.box(operator.numRowsTotal),
      RowsUpdated -> Long.box(operator.numRowsUpdated),
      RowsRemoved -> Long.box(operator.numRowsRemoved),
      MemoryUsed -> Long.box(operator.memoryUsedBytes),
      CommitTime -> Long.box(operator.commitTimeMs)) ++ operator.customMetrics.asScala)

  // No event has it.
  private def checkpointOf(id: UUID): Option[String] =
    classic.SparkSession.getDefaultSession.flatMap { session =>
      Option(session.sharedState.activeStreamingQueries.get(id)).map(_.resolvedCheckpointRoot)
    }
}

private[statestore] object QueryMonitor extends Logging {
  final val RowsTotal = "numRowsTotal"
  final val RowsUpdated = "numRowsUpdated"
  final val RowsRemoved = "numRowsRemoved"
  final val MemoryUsed = "memoryUsedBytes"
  final val CommitTime = "commitTimeMs"

  /** Queries that are kept; of more, the oldest that has ended is dropped. */
  final val MaxQueries = 100

  /** Batches that are kept of each query. */
  final val MaxBatches = 100

  private final val MaxErrorLength = 10000

  private var current: Option[(SparkContext, QueryMonitor)] = None

  /** Returns the monitor of an application; the first call starts it, and adds its tab to the application's UI. */
  def of(context: SparkContext): QueryMonitor = synchronized {
    current.collect { case (same, monitor) if same eq context => monitor }.getOrElse {
      val monitor = new QueryMonitor
      // A queue of its own would cost a thread that each task's events wake up.
      context.listenerBus.addToStatusQueue(monitor)
      context.ui.foreach(ui => new StateTab(ui, () => monitor.queries).attach())
      current = Some((context, monitor))
      monitor
    }
  }

  // A JVM may outlive its application.
  private def end(monitor: QueryMonitor): Unit = synchronized {
    if (current.exists { case (_, currentMonitor) => currentMonitor eq monitor }) {
      current = None
      CommitFigures.clear()
    }
  }

  /** Starts the monitor of an application, which does without it if that fails. */
  def start(context: SparkContext): Unit =
    try of(context) catch {
      case NonFatal(e) => logWarning("the application's UI has no tab of state", e)
    }
}
