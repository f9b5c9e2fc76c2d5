package org.apache.spark.sql.statestore

import org.apache.spark.{SPARK_VERSION, SparkContext}
import org.apache.spark.sql.{SparkSession, SparkSessionExtensions}
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.statestore.driver.{CommitReportsRule, DriverCheckpointStore, OptionCheck, QueryMonitor,
  QueryOptionsRule, QueryStarts, RealTimeSessions, SessionStart, SkippedBatchesRule}
import org.apache.spark.sql.statestore.provider.BackendOptions
import org.apache.spark.sql.statestore.transform.TransformWithStateRule

/**
 * Session extension, loaded through `spark.sql.extensions`. It lets transformWithState and queries in
 * real-time mode run on this package's providers, which Spark refuses, and validates the options of the state
 * store on the driver: names and values when a streaming query is analysed, and interpreter and directories when
 * its first batch is planned. It adds the tab "State" to the application's UI.
 *
 * Without it everything else still works, but an invalid option fails the first batch.
 */
class StateStoreExtensions extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit = {
    BuildInfo.requireSpark(SPARK_VERSION)
    SparkContext.getActive.foreach { context =>
      BackendFileSystem.register(context.hadoopConfiguration)
      QueryMonitor.start(context)
      SessionStart.begin(context)
    }
    extensions.injectCheckRule(session => plan => StateStoreExtensions.check(session, plan))
    extensions.injectPostHocResolutionRule(_ => SkippedBatchesRule)
    extensions.injectColumnar(_ => TransformWithStateRule)
    extensions.injectColumnar(session => new QueryOptionsRule(session))
    extensions.injectColumnar(session => new CommitReportsRule(session))
  }
}

private[statestore] object StateStoreExtensions {
  def check(session: SparkSession, plan: LogicalPlan): Unit = if (plan.isStreaming) {
    if (newQueriesUseOurs(session.conf.getAll)) {
      // Also for stateless queries: the stateful operators are known only once a batch is planned.
      val options = BackendOptions.parse(session.conf.getAll)
      OptionCheck.requireValid(session, options)
      if (options.isOnDriver) DriverCheckpointStore.require(session.sparkContext)
      if (options.isRealTimeMode) RealTimeSessions.require()
    }
    // In every session: a query that goes on keeps its provider, whatever the session has.
    QueryStarts.attend(session)
  }

  /** True if the settings of a session have its new queries keep their state in this store. */
  private def newQueriesUseOurs(settings: Map[String, String]): Boolean =
    settings.get(SQLConf.STATE_STORE_PROVIDER_CLASS.key)
      .fold(settings.contains(BackendOptions.RealTimeMode))(isOurs)

  /** True if a provider class keeps its state in this store. */
  def isOurs(className: String): Boolean = className == classOf[CheckpointStateStoreProvider].getName

  /** True if an operator of a batch has its state in this store: by its query's session, or its offset log. */
  def keepsState(operator: SparkPlan): Boolean =
    isOurs(operator.conf.getConf(SQLConf.STATE_STORE_PROVIDER_CLASS))
}
