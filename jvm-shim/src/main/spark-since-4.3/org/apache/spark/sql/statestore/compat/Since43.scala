package org.apache.spark.sql.statestore.compat

import org.apache.spark.sql.execution.streaming.state._

/** Members that Spark's interfaces have since 4.3. */
private[statestore] trait ProviderSince43 extends StateStoreProvider

private[statestore] trait ReadStoreSince43 extends ReadStateStore

private[statestore] trait CustomMetricSince43 extends StateStoreCustomMetric

/** Metric of a size in bytes. */
private[statestore] object SizeMetric {
  /** @param isSnapshot  true for a property of the state, false for one of a batch */
  def apply(name: String, desc: String, isSnapshot: Boolean): StateStoreCustomMetric =
    StateStoreCustomSizeMetric(name, desc, isSnapshot)
}
