package org.apache.spark.sql.statestore.compat

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.TaskContext
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** Members that Spark's interfaces have since 4.1. */
private[statestore] trait ProviderSince41 extends StateStoreProvider {
  def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore, version: Long, stateStoreCkptId: Option[String]): StateStore
}

private[statestore] trait ReplaySince41 extends SupportsFineGrainedReplay {
  def replayStateFromSnapshot(
      snapshotVersion: Long, endVersion: Long, readOnly: Boolean, snapshotVersionStateStoreCkptId: Option[String],
      endVersionStateStoreCkptId: Option[String]): StateStore

  def replayReadStateFromSnapshot(
      snapshotVersion: Long, endVersion: Long, snapshotVersionStateStoreCkptId: Option[String],
      endVersionStateStoreCkptId: Option[String]): ReadStateStore

  def getStateStoreChangeDataReader(
      startVersion: Long, endVersion: Long, colFamilyNameOpt: Option[String],
      endVersionStateStoreCkptId: Option[String]): StateStoreChangeDataReader

  override def replayStateFromSnapshot(snapshotVersion: Long, endVersion: Long): StateStore =
    replayStateFromSnapshot(snapshotVersion, endVersion, readOnly = false, None, None)

  override def replayReadStateFromSnapshot(snapshotVersion: Long, endVersion: Long): ReadStateStore =
    replayReadStateFromSnapshot(snapshotVersion, endVersion, None, None)

  override def getStateStoreChangeDataReader(
      startVersion: Long, endVersion: Long, colFamilyNameOpt: Option[String]): StateStoreChangeDataReader =
    getStateStoreChangeDataReader(startVersion, endVersion, colFamilyNameOpt, None)
}

private[statestore] trait ReadStoreSince41 extends ReadStateStore {
  def release(): Unit
}

private[statestore] trait WriteStoreSince41 extends StateStore {
  def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit

  def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit

  def release(): Unit = throw new UnsupportedOperationException("only read stores are released")
}

/**
 * The read stores of running tasks. Spark 4.0 opens a read store and a write store of one version in a task:
 * without the former the latter would load the state again.
 */
private[statestore] final class TaskReadStores {
  private val stores = new java.util.concurrent.ConcurrentHashMap[Long, ReadStateStore]

  /** Remembers the read store that the running task opened last, until the task ends. */
  def add(store: ReadStateStore): Unit = Option(TaskContext.get()).foreach { task =>
    val attempt = task.taskAttemptId()
    if (stores.put(attempt, store) == null) {
      task.addTaskCompletionListener[Unit](_ => stores.remove(attempt))
    }
  }

  /** Returns the read store that the running task opened last. */
  def find(): Option[ReadStateStore] =
    Option(TaskContext.get()).flatMap(task => Option(stores.get(task.taskAttemptId())))
}

/** Members of Spark that have another package or other parameters since 4.1. */
private[statestore] object Since41 {
  type StatefulOperator = org.apache.spark.sql.execution.streaming.StatefulOperator

  type StreamExecution = org.apache.spark.sql.execution.streaming.StreamExecution

  type CheckpointFileManager = org.apache.spark.sql.execution.streaming.CheckpointFileManager

  type CancellableOutput = org.apache.spark.sql.execution.streaming.CheckpointFileManager.CancellableFSDataOutputStream

  /** Local property with the id of the running query. */
  val QueryIdKey: String = org.apache.spark.sql.execution.streaming.StreamExecution.QUERY_ID_KEY

  /** This Spark does not show the copy of the session that a query runs in, and has read its settings before. */
  def ownSession(query: StreamExecution): Option[SparkSession] = None

  def fileManager(directory: Path, hadoopConf: Configuration): CheckpointFileManager =
    org.apache.spark.sql.execution.streaming.CheckpointFileManager.create(directory, hadoopConf)

  def validateStateRowFormat(
      key: UnsafeRow, keySchema: StructType, value: UnsafeRow, valueSchema: StructType, store: StateStoreId,
      conf: StateStoreConf): Unit =
    StateStoreProvider.validateStateRowFormat(key, keySchema, value, valueSchema, conf)

  /** This Spark has no bound. */
  def maxVersionsToDelete(conf: StateStoreConf): Int = -1

  def release(store: ReadStateStore): Unit = store.abort()
}
