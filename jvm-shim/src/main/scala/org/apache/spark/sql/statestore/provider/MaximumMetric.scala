package org.apache.spark.sql.statestore.provider

import org.apache.spark.SparkContext
import org.apache.spark.sql.connector.metric.CustomMetric
import org.apache.spark.sql.execution.metric.{CustomMetrics, SQLMetric}
import org.apache.spark.sql.statestore.compat.CustomMetricSince43
import org.apache.spark.util.AccumulatorV2

/** A custom metric of which Spark reports the maximum over the stores of an operator; its own are all sums. */
private[statestore] final case class MaximumMetric(name: String, desc: String) extends CustomMetricSince43 {
  override def withNewDesc(desc: String): MaximumMetric = copy(desc = desc)

  override def createSQLMetric(sparkContext: SparkContext): SQLMetric = {
    val created = new MaximumSQLMetric(CustomMetrics.buildV2CustomMetricTypeName(new MaximumOfTasks))
    created.register(sparkContext, Some(desc))
    created
  }

  // A property of the state, not of a batch.
  override def isSnapshot: Boolean = true
}

/** SQL metric whose value is the maximum of all added and merged values. */
private final class MaximumSQLMetric(metricType: String) extends SQLMetric(metricType) {
  override def add(v: Long): Unit = set(math.max(value, v))

  override def merge(other: AccumulatorV2[Long, Long]): Unit = add(other.value)

  override def copy(): SQLMetric = {
    val copied = new MaximumSQLMetric(metricType)
    copied.set(value)
    copied
  }
}

/** Aggregation of the values of all tasks for the UI; Spark instantiates it by the name of this class. */
final class MaximumOfTasks extends CustomMetric {
  override def name: String = "maximum"

  override def description: String = "maximum over tasks"

  override def aggregateTaskMetrics(taskMetrics: Array[Long]): String = taskMetrics.maxOption.getOrElse(0L).toString
}
