package org.apache.spark.sql.statestore.bench

import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/**
 * State store whose rows are in a map of this process and nowhere else: the limit of a whole query, as any store
 * that checkpoints does more.
 *
 * Guarantees: right answers as long as the process lives and each batch commits. It is not a store that can
 * recover: it writes nothing, has the newest version alone, and changes it in place, so that another version, or
 * a batch after one that did not commit, is an error. Rows outlive their provider, which Spark may unload and make
 * anew at any time. A commit counts the version and does not even report it to
 * Spark's coordinator, which only foreachBatch sinks demand. It supports operators that get, put, remove and iterate,
 * in column families too, and in both checkpoint formats.
 */
final class UncheckpointedStateStoreProvider extends StateStoreProvider {
  private var id: StateStoreId = _
  private var partition: UncheckpointedPartition = _
  private var hasIds = false

  override def init(
      stateStoreId: StateStoreId,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean,
      storeConfs: StateStoreConf,
      hadoopConf: Configuration,
      useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): Unit = {
    id = stateStoreId
    partition = UncheckpointedPartition.of(id)
    hasIds = storeConfs.enableStateStoreCheckpointIds
  }

  override def stateStoreId: StateStoreId = id

  override def getStore(
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore = {
    if (version != partition.newest || partition.isChanged || loadEmpty) {
      throw new IllegalStateException(
        s"version $version of $id is lost: the benchmark's store without checkpoints has version " +
          s"${partition.newest} alone${if (partition.isChanged) ", changed by a batch that did not commit" else ""}. " +
          "Start the query anew.")
    }
    new UncheckpointedStateStore(partition, version, stateStoreCkptId, hasIds)
  }

  override def close(): Unit = ()
}

/** Rows of a partition's store, and the version that they are. */
private[bench] final class UncheckpointedPartition(val id: StateStoreId) {
  // Spark removes rows while it iterates, and the tasks of a batch have other threads than those of the last one.
  private val families = new ConcurrentHashMap[String, ConcurrentHashMap[UnsafeRow, UnsafeRow]]
  createFamily(StateStore.DEFAULT_COL_FAMILY_NAME)

  // Not volatile, which each put would pay for: the tasks of a partition follow one another.
  var newest = 0L
  var isChanged = false

  def createFamily(name: String): Unit = families.putIfAbsent(name, new ConcurrentHashMap)

  def familyNames: Set[String] = families.keySet.asScala.toSet

  def family(name: String): ConcurrentHashMap[UnsafeRow, UnsafeRow] = {
    val rows = families.get(name)
    if (rows == null) throw new IllegalStateException(s"$id has no column family $name. Create it first.")
    rows
  }

  def numRows: Long = families.values.asScala.map(_.size.toLong).sum
}

private object UncheckpointedPartition {
  private val partitions = new ConcurrentHashMap[StateStoreId, UncheckpointedPartition]

  def of(id: StateStoreId): UncheckpointedPartition =
    partitions.computeIfAbsent(id, id => new UncheckpointedPartition(id))
}

/** Reads and writes of one batch, in place. */
private[bench] final class UncheckpointedStateStore(
    partition: UncheckpointedPartition, override val version: Long, baseId: Option[String], hasIds: Boolean)
  extends StateStore {
  import UncheckpointedStateStore._

  private val default = partition.family(StateStore.DEFAULT_COL_FAMILY_NAME)

  override def id: StateStoreId = partition.id

  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow = rows(colFamilyName).get(key)

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
    partition.isChanged = true
    // Spark reuses the memory of both.
    val ownValue = value.copy()
    val familyRows = rows(colFamilyName)
    if (familyRows.replace(key, ownValue) == null) familyRows.put(key.copy(), ownValue)
  }

  override def remove(key: UnsafeRow, colFamilyName: String): Unit = {
    partition.isChanged = true
    rows(colFamilyName).remove(key)
  }

  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val pair = new UnsafeRowPair
    new StateStoreIterator(
      rows(colFamilyName).entrySet.iterator.asScala.map(entry => pair.withRows(entry.getKey, entry.getValue)))
  }

  override def commit(): Long = {
    partition.newest = version + 1
    partition.isChanged = false
    version + 1
  }

  override def hasCommitted: Boolean = partition.newest > version

  override def abort(): Unit = ()

  override def release(): Unit = ()

  override def metrics: StateStoreMetrics = StateStoreMetrics(partition.numRows, 0L, Map.empty, Map.empty)

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo =
    StateStoreCheckpointInfo(
      id.partitionId, version + 1, if (hasIds) Some((version + 1).toString) else None, baseId)

  override def allColumnFamilyNames: Set[String] = partition.familyNames

  override def createColFamilyIfAbsent(
      colFamilyName: String, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec, useMultipleValuesPerKey: Boolean, isInternal: Boolean): Unit = {
    if (useMultipleValuesPerKey) unsupported("multiple values per key")
    partition.createFamily(colFamilyName)
  }

  private def rows(colFamilyName: String): ConcurrentHashMap[UnsafeRow, UnsafeRow] =
    if (colFamilyName == StateStore.DEFAULT_COL_FAMILY_NAME) default else partition.family(colFamilyName)

  override def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] =
    unsupported("valuesIterator")

  /** Scans a family without rows, such as that of timers which no processor registers. */
  override def rangeScan(
      startKey: Option[UnsafeRow], endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    if (rows(colFamilyName).isEmpty) new StateStoreIterator(Iterator.empty) else unsupported("rangeScan of rows")

  override def prefixScan(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    unsupported("prefixScan")

  override def prefixScanWithMultiValues(
      prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    unsupported("prefixScanWithMultiValues")

  override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    unsupported("iteratorWithMultiValues")

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit =
    unsupported("putList")

  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = unsupported("merge")

  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit =
    unsupported("mergeList")

  override def removeColFamilyIfExists(colFamilyName: String): Boolean = unsupported("removeColFamilyIfExists")
}

private[bench] object UncheckpointedStateStore {
  def unsupported(feature: String): Nothing =
    throw new UnsupportedOperationException(s"the benchmark's store without checkpoints has no $feature")
}
