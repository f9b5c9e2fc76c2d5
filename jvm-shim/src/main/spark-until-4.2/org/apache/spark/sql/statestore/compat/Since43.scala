package org.apache.spark.sql.statestore.compat

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** Members that Spark's interfaces have since 4.3. */
private[statestore] trait ProviderSince43 extends StateStoreProvider {
  def doSnapshotMaintenance(): Unit

  def doCleanupMaintenance(): Unit
}

private[statestore] trait ReadStoreSince43 extends ReadStateStore {
  def registerColFamily(
      colFamilyName: String, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec, useMultipleValuesPerKey: Boolean, isInternal: Boolean): Unit
}

private[statestore] trait CustomMetricSince43 extends StateStoreCustomMetric {
  def isSnapshot: Boolean
}

/** Metric of a size in bytes. */
private[statestore] object SizeMetric {
  /** @param isSnapshot  true for a property of the state, false for one of a batch; not told to this Spark */
  def apply(name: String, desc: String, isSnapshot: Boolean): StateStoreCustomMetric =
    StateStoreCustomSizeMetric(name, desc)
}
