package org.apache.spark.sql.statestore.driver

import org.apache.spark.TaskContext
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink

/**
 * Tells the tasks of each batch whether Spark asks which stores have committed: it does for foreachBatch sinks alone, whose
 * function may not run all tasks. The tasks of other queries need not wait for the driver to take a report.
 *
 * Without this rule every commit is reported.
 */
private[statestore] final class CommitReportsRule(session: SparkSession) extends ColumnarRule {
  override val preColumnarTransitions: Rule[SparkPlan] = new Rule[SparkPlan] {
    override val ruleName: String = "commit reports of spark-statestore"

    override def apply(plan: SparkPlan): SparkPlan = {
      RunningQuery.of(session).foreach { query =>
        val isWanted = query.sink.isInstanceOf[ForeachBatchSink[_]]
        session.sparkContext.setLocalProperty(CommitReportsRule.Unwanted, if (isWanted) null else "true")
      }
      plan
    }
  }
}

private[statestore] object CommitReportsRule {
  private val Unwanted = "spark.statestore.commitReportsUnwanted"

  /** True if the driver may ask for the commit of the calling task. */
  def areWanted: Boolean = {
    val task = TaskContext.get()
    task == null || task.getLocalProperty(Unwanted) == null
  }
}
