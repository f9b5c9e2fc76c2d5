package org.apache.spark.sql.statestore.compat

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** Members that Spark's interfaces have since 4.1. */
private[statestore] trait ProviderSince41 extends StateStoreProvider

private[statestore] trait ReplaySince41 extends SupportsFineGrainedReplay

private[statestore] trait ReadStoreSince41 extends ReadStateStore

private[statestore] trait WriteStoreSince41 extends StateStore

/** The read stores of running tasks: since 4.1 Spark passes them to `upgradeReadStoreToWriteStore`. */
private[statestore] final class TaskReadStores {
  def add(store: ReadStateStore): Unit = ()

  def find(): Option[ReadStateStore] = None
}

/** Members of Spark that have another package or other parameters since 4.1. */
private[statestore] object Since41 {
  type StatefulOperator = org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperator

  type StreamExecution = org.apache.spark.sql.execution.streaming.runtime.StreamExecution

  type CheckpointFileManager = org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager

  type CancellableOutput = org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream

  /** Local property with the id of the running query. */
  val QueryIdKey: String = org.apache.spark.sql.execution.streaming.runtime.StreamExecution.QUERY_ID_KEY

  /** Returns the copy of the session that a query runs in. */
  def ownSession(query: StreamExecution): Option[SparkSession] = Some(query.sparkSessionForStream)

  def fileManager(directory: Path, hadoopConf: Configuration): CheckpointFileManager =
    org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.create(directory, hadoopConf)

  def validateStateRowFormat(
      key: UnsafeRow, keySchema: StructType, value: UnsafeRow, valueSchema: StructType, store: StateStoreId,
      conf: StateStoreConf): Unit =
    StateStoreProvider.validateStateRowFormat(key, keySchema, value, valueSchema, store, conf)

  def maxVersionsToDelete(conf: StateStoreConf): Int = conf.maxVersionsToDeletePerMaintenance

  def release(store: ReadStateStore): Unit = store.release()
}
