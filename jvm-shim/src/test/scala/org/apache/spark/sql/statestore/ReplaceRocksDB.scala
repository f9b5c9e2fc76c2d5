package org.apache.spark.sql.statestore

import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.catalyst.streaming.WriteToStream
import org.apache.spark.sql.internal.SQLConf

/**
 * Session extension for Spark's own test suites: a query that asks for RocksDB starts with this store. Some
 * suites set the provider themselves, in a block that ends with the test.
 */
class ReplaceRocksDB extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit =
    extensions.injectResolutionRule(_ => ReplaceRocksDB)
}

private object ReplaceRocksDB extends Rule[LogicalPlan] {
  private val rocksDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

  override def apply(plan: LogicalPlan): LogicalPlan = {
    // Spark copies the session for the query after this plan is resolved.
    if (plan.isInstanceOf[WriteToStream] && conf.stateStoreProviderClass == rocksDB) {
      conf.setConf(SQLConf.STATE_STORE_PROVIDER_CLASS, classOf[CheckpointStateStoreProvider].getName)
    }
    plan
  }
}
