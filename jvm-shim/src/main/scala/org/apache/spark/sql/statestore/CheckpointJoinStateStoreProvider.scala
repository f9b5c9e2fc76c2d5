package org.apache.spark.sql.statestore

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.compat.{NewestFineGrainedReplay, NewestReadStateStore, NewestStateStore,
  NewestStateStoreProvider}
import org.apache.spark.sql.types.StructType

/**
 * A [[CheckpointStateStoreProvider]] with the type of Spark's RocksDB provider, which Spark 4.3
 * demands before it lets a stream-stream join use state format 3 or 4.
 *
 * Guarantees: every call is delegated to the other provider, with the same options, metrics and files.
 * No inherited code runs, so RocksDB's native library is never loaded.
 */
class CheckpointJoinStateStoreProvider extends RocksDBStateStoreProvider
  with NewestStateStoreProvider with NewestFineGrainedReplay {
  private val provider = new CheckpointStateStoreProvider

  override def init(
      stateStoreId: StateStoreId,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean,
      storeConfs: StateStoreConf,
      hadoopConf: Configuration,
      useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): Unit =
    provider.init(
      stateStoreId, keySchema, valueSchema, keyStateEncoderSpec, useColumnFamilies, storeConfs, hadoopConf,
      useMultipleValuesPerKey, stateSchemaProvider)

  override def stateStoreId: StateStoreId = provider.stateStoreId

  override def getStore(
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore =
    provider.getStore(version, stateStoreCkptId, forceSnapshotOnCommit, loadEmpty)

  override def getReadStore(version: Long, stateStoreCkptId: Option[String]): StateStore =
    new ReadOnlyStateStore(provider.getReadStore(version, stateStoreCkptId))

  override def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore,
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean): StateStore = {
    val opened = readStore match {
      case wrapped: ReadOnlyStateStore => wrapped.store
      case other => other
    }
    provider.upgradeReadStoreToWriteStore(opened, version, stateStoreCkptId, forceSnapshotOnCommit)
  }

  override def replayStateFromSnapshot(
      snapshotVersion: Long,
      endVersion: Long,
      readOnly: Boolean,
      snapshotVersionStateStoreCkptId: Option[String],
      endVersionStateStoreCkptId: Option[String]): StateStore =
    provider.replayStateFromSnapshot(
      snapshotVersion, endVersion, readOnly, snapshotVersionStateStoreCkptId, endVersionStateStoreCkptId)

  override def replayReadStateFromSnapshot(
      snapshotVersion: Long,
      endVersion: Long,
      snapshotVersionStateStoreCkptId: Option[String],
      endVersionStateStoreCkptId: Option[String]): ReadStateStore =
    provider.replayReadStateFromSnapshot(
      snapshotVersion, endVersion, snapshotVersionStateStoreCkptId, endVersionStateStoreCkptId)

  override def getStateStoreChangeDataReader(
      startVersion: Long,
      endVersion: Long,
      colFamilyNameOpt: Option[String],
      endVersionStateStoreCkptId: Option[String]): StateStoreChangeDataReader =
    provider.getStateStoreChangeDataReader(startVersion, endVersion, colFamilyNameOpt, endVersionStateStoreCkptId)

  override def close(): Unit = provider.close()

  override def doMaintenance(): Unit = provider.doMaintenance()

  override def doSnapshotMaintenance(): Unit = provider.doSnapshotMaintenance()

  override def doCleanupMaintenance(): Unit = provider.doCleanupMaintenance()

  override def supportedCustomMetrics: Seq[StateStoreCustomMetric] = provider.supportedCustomMetrics

  override def toString: String = provider.toString
}

/** A read store with the type of a writable one: reads are delegated, writes throw. */
private[statestore] final class ReadOnlyStateStore(val store: NewestReadStateStore) extends NewestStateStore {
  override def id: StateStoreId = store.id

  override def version: Long = store.version

  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow = store.get(key, colFamilyName)

  override def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow] =
    store.multiGet(keys, colFamilyName)

  override def keyExists(key: UnsafeRow, colFamilyName: String): Boolean = store.keyExists(key, colFamilyName)

  override def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] =
    store.valuesIterator(key, colFamilyName)

  override def prefixScan(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    store.prefixScan(prefixKey, colFamilyName)

  override def prefixScanWithMultiValues(
      prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    store.prefixScanWithMultiValues(prefixKey, colFamilyName)

  override def rangeScan(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    store.rangeScan(startKey, endKey, colFamilyName)

  override def rangeScanWithMultiValues(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    store.rangeScanWithMultiValues(startKey, endKey, colFamilyName)

  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    store.iterator(colFamilyName)

  override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    store.iteratorWithMultiValues(colFamilyName)

  override def allColumnFamilyNames: Set[String] = store.allColumnFamilyNames

  override def registerColFamily(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit =
    store.registerColFamily(
      colFamilyName, keySchema, valueSchema, keyStateEncoderSpec, useMultipleValuesPerKey, isInternal)

  override def abort(): Unit = store.abort()

  override def release(): Unit = store.release()

  override def hasCommitted: Boolean = false

  override def createColFamilyIfAbsent(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit = throw readOnly

  override def removeColFamilyIfExists(colFamilyName: String): Boolean = throw readOnly

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = throw readOnly

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = throw readOnly

  override def remove(key: UnsafeRow, colFamilyName: String): Unit = throw readOnly

  override def deleteRange(beginKey: UnsafeRow, endKey: UnsafeRow, colFamilyName: String): Unit = throw readOnly

  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = throw readOnly

  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = throw readOnly

  override def commit(): Long = throw readOnly

  override def metrics: StateStoreMetrics = throw readOnly

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo = throw readOnly

  override def toString: String = store.toString

  private def readOnly: UnsupportedOperationException =
    new UnsupportedOperationException(s"this store is read-only: $this")
}
