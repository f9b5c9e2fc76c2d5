package org.apache.spark.sql.statestore.provider

import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId}

/** Reports of one store to Spark's state store coordinator: this Spark takes none. */
private[statestore] final class CoordinatorReports(id: StateStoreId, runId: String, conf: StateStoreConf) {
  def committed(version: Long): Unit = ()

  def snapshot(version: Long): Unit = ()
}
