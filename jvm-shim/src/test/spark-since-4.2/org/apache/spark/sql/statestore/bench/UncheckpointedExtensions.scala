package org.apache.spark.sql.statestore.bench

import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.statestore.transform.CheckpointTransformWithStateInPySparkExec

/**
 * Session extension that lets Python's transformWithState run on [[UncheckpointedStateStoreProvider]], as Spark's
 * operator requires the class name of Spark's RocksDB provider.
 *
 * Guarantees: plans of queries on other providers are unchanged.
 */
final class UncheckpointedExtensions extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit =
    extensions.injectColumnar(_ => UncheckpointedRule)
}

private object UncheckpointedRule extends ColumnarRule {
  override val preColumnarTransitions: Rule[SparkPlan] = new Rule[SparkPlan] {
    override def apply(plan: SparkPlan): SparkPlan = plan.transformUp {
      case python: TransformWithStateInPySparkExec
          if python.conf.getConf(SQLConf.STATE_STORE_PROVIDER_CLASS) ==
            classOf[UncheckpointedStateStoreProvider].getName =>
        new CheckpointTransformWithStateInPySparkExec(python)
    }
  }
}
