package org.apache.spark.sql.statestore.transform

import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.{TransformWithStateExec, TransformWithStateExecBase}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.statestore.StateStoreExtensions

/**
 * Lets transformWithState run on this package's providers: Spark's two operators compare the name of
 * the provider's class with that of Spark's RocksDB provider, and there is no option to say otherwise.
 * So streaming queries on a provider of this package get subclasses of these operators that leave the
 * comparison out and are Spark's own in everything else. All other plans stay as they are.
 *
 * It is a columnar rule because those are the ones that a session extension can have run behind Spark's
 * own rules for a streaming batch, which tell the operators their state, their time and their watermark.
 */
private[statestore] object TransformWithStateRule extends ColumnarRule {
  override val preColumnarTransitions: Rule[SparkPlan] = new Rule[SparkPlan] {
    override val ruleName: String = "transformWithState on spark-statestore"

    override def apply(plan: SparkPlan): SparkPlan = plan.transformUp {
      case scala: TransformWithStateExec if scala.isStreaming && isOurs(scala) =>
        CheckpointTransformWithStateExec(scala)
      case python: TransformWithStateInPySparkExec if python.isStreaming && isOurs(python) =>
        CheckpointTransformWithStateInPySparkExec(python)
    }
  }

  // The very setting that the operator would check: of the query's session, or of its offset log.
  private def isOurs(operator: TransformWithStateExecBase): Boolean =
    StateStoreExtensions.isOurs(operator.conf.getConf(SQLConf.STATE_STORE_PROVIDER_CLASS))
}
