package org.apache.spark.sql.statestore.compat

import org.apache.spark.SPARK_VERSION
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.UnsupportedFeatureException
import org.apache.spark.sql.types.StructType

/** Members that Spark's interfaces have since 4.2. */
private[statestore] trait ProviderSince42 extends StateStoreProvider with ProviderSince41 {
  def getStore(
      version: Long, stateStoreCkptId: Option[String], forceSnapshotOnCommit: Boolean, loadEmpty: Boolean): StateStore

  def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore, version: Long, stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean): StateStore

  override def getStore(version: Long, stateStoreCkptId: Option[String]): StateStore =
    getStore(version, stateStoreCkptId, forceSnapshotOnCommit = false, loadEmpty = false)

  override def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore, version: Long, stateStoreCkptId: Option[String]): StateStore =
    upgradeReadStoreToWriteStore(readStore, version, stateStoreCkptId, forceSnapshotOnCommit = false)
}

private[statestore] trait ReadStoreSince42 extends ReadStateStore {
  def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow]

  def keyExists(key: UnsafeRow, colFamilyName: String): Boolean

  def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def prefixScanWithMultiValues(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def rangeScan(
      startKey: Option[UnsafeRow], endKey: Option[UnsafeRow], colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def rangeScanWithMultiValues(
      startKey: Option[UnsafeRow], endKey: Option[UnsafeRow], colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def allColumnFamilyNames: Set[String]
}

private[statestore] trait WriteStoreSince42 extends StateStore {
  def deleteRange(beginKey: UnsafeRow, endKey: UnsafeRow, colFamilyName: String): Unit
}

/** Keys with a timestamp as their last column, ordered by it first: this Spark has none. */
private[statestore] object TimestampPrefixKeys extends MissingKeys

/** Keys with a timestamp as their last column, ordered by it last: this Spark has none. */
private[statestore] object TimestampPostfixKeys extends MissingKeys

private[statestore] sealed abstract class MissingKeys {
  def apply(keySchema: StructType): KeyStateEncoderSpec =
    throw new UnsupportedFeatureException(
      s"the checkpoint has keys that are ordered by a timestamp, which Spark $SPARK_VERSION does not support: a " +
        "stream-stream join of state format 4 wrote them. Continue it with Spark 4.3 or later; nothing was changed.")

  def unapply(spec: KeyStateEncoderSpec): Option[StructType] = None
}

/** Spark's reader of change logs, with nothing to read by itself. */
private[statestore] abstract class ChangeDataReader(
    id: StateStoreId, startVersion: Long, endVersion: Long, conf: StateStoreConf, family: String)
  extends StateStoreChangeDataReader(null, null, startVersion, endVersion, null, Some(family)) {

  override protected val changelogSuffix: String = ""

  // A variable in 4.0.
  protected def changelogSuffix_=(suffix: String): Unit = ()
}
