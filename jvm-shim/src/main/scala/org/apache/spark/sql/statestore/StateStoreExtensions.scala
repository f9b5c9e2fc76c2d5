package org.apache.spark.sql.statestore

import org.apache.spark.SPARK_VERSION
import org.apache.spark.sql.{SparkSession, SparkSessionExtensions}
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.statestore.memory.CheckpointKeeper
import org.apache.spark.sql.statestore.transform.TransformWithStateRule

/**
 * Loaded through `spark.sql.extensions`. Lets transformWithState run on this package's providers, which
 * Spark itself refuses; and checks the options of the state store on the driver, when a streaming query
 * is analysed, so that a mistake shows there and not in the first task, and that executors can hand
 * their state to the driver where that is to keep it.
 *
 * Without it everything but transformWithState still works, but a wrong option fails the first batch.
 */
class StateStoreExtensions extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit = {
    BuildInfo.requireSpark(SPARK_VERSION)
    extensions.injectCheckRule(session => plan => StateStoreExtensions.check(session, plan))
    extensions.injectColumnar(_ => TransformWithStateRule)
  }
}

private[statestore] object StateStoreExtensions {
  def check(session: SparkSession, plan: LogicalPlan): Unit =
    if (plan.isStreaming && session.conf.getOption(SQLConf.STATE_STORE_PROVIDER_CLASS.key).exists(isOurs)) {
      // Of a stateless query too: whether a plan keeps state shows only when it is run.
      if (BackendOptions.parse(session.conf.getAll).isKeptOnDriver) CheckpointKeeper.require(session.sparkContext)
    }

  /** Whether a provider class keeps its state in this store. */
  def isOurs(className: String): Boolean =
    className == classOf[CheckpointStateStoreProvider].getName ||
      className == classOf[CheckpointJoinStateStoreProvider].getName
}
