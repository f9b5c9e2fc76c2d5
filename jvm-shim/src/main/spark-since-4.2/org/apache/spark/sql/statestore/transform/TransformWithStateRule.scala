package org.apache.spark.sql.statestore.transform

import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec
import org.apache.spark.sql.statestore.StateStoreExtensions.keepsState

/**
 * Rule that lets transformWithState run on this package's providers. Spark's two operators require the
 * class name of Spark's RocksDB provider, which no option disables: streaming queries on a provider of this
 * package get subclasses of these operators without that check. All other plans are unchanged.
 *
 * It is a columnar rule because a session extension can run only those after Spark's own rules for a
 * streaming batch, which set state, time and watermark of the operators.
 */
private[statestore] object TransformWithStateRule extends ColumnarRule {
  override val preColumnarTransitions: Rule[SparkPlan] = new Rule[SparkPlan] {
    override val ruleName: String = "transformWithState on spark-statestore"

    override def apply(plan: SparkPlan): SparkPlan = plan.transformUp {
      case scala: TransformWithStateExec if scala.isStreaming && keepsState(scala) =>
        new CheckpointTransformWithStateExec(scala)
      case python: TransformWithStateInPySparkExec if python.isStreaming && keepsState(python) =>
        new CheckpointTransformWithStateInPySparkExec(python)
    }
  }
}
