package org.apache.spark.sql.statestore.driver

import org.apache.spark.sql.{DataFrame, classic}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.catalyst.streaming.WriteToStream
import org.apache.spark.sql.connector.catalog.Table
import org.apache.spark.sql.execution.{QueryExecution, SparkPlan}
import org.apache.spark.sql.execution.streaming.Sink
import org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink
import org.apache.spark.sql.statestore.StateStoreExtensions
import org.apache.spark.sql.statestore.compat.Since41

/**
 * Runs the stateful operators of batches that a sink skips.
 *
 * A sink that identifies batches by number, such as Spark's file sink, Delta Lake's or a foreachBatch function with a log of its
 * own, returns at once from a batch that it has. If the driver has ended after the sink's commit and before Spark's, the batch is
 * run again, skipped, and added to the commit log without a task. Its state then exists only if its first run published it, which
 * `commit=batch` does not before Spark's commit; its watermark does not advance, and checkpoint format v2 fails for lack of
 * checkpoint ids.
 */
private[statestore] object SkippedBatchesRule extends Rule[LogicalPlan] {
  // Spark's metric of the stores that tasks have used.
  private final val Stores = "numStateStoreInstances"

  override def apply(plan: LogicalPlan): LogicalPlan = plan match {
    // In every session: a query that goes on keeps its provider, which only its batches tell.
    case write: WriteToStream => write.copy(sink = wrapped(write.sink))
    case _ => plan
  }

  private def wrapped(sink: Table): Table = sink match {
    case _: RunningSink => sink
    // Spark looks for the class of this sink.
    case function: ForeachBatchSink[_] => new RunningFunction(function)
    case runnable: Sink => new RunningV1Sink(runnable)
    case _ => sink
  }

  private sealed trait RunningSink extends Sink {
    protected def sink: Sink

    override def addBatch(batchId: Long, data: DataFrame): Unit = {
      sink.addBatch(batchId, data)
      data match {
        case batch: classic.Dataset[_] => runIfSkipped(batch.queryExecution)
        case _ =>
      }
    }

    override def toString: String = sink.toString
  }

  private final class RunningV1Sink(override protected val sink: Sink) extends RunningSink

  // The function and its encoder are used by `sink` alone.
  private final class RunningFunction(override protected val sink: ForeachBatchSink[_])
      extends ForeachBatchSink[Any](null, null) with RunningSink

  private def runIfSkipped(batch: QueryExecution): Unit = {
    val used = batch.executedPlan.collect {
      case stateful: SparkPlan with Since41.StatefulOperator if StateStoreExtensions.keepsState(stateful) =>
        stateful.metrics.get(Stores).map(_.value)
    }.flatten
    // As operators of one batch run in one job, all of them have run or none.
    if (used.nonEmpty && used.forall(_ <= 0)) {
      batch.toRdd.foreachPartition((rows: Iterator[InternalRow]) => rows.foreach(_ => ()))
    }
  }
}
