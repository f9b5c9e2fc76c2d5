package org.apache.spark.sql.statestore.compat

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** Members that Spark's interfaces have since 4.2. */
private[statestore] trait ProviderSince42 extends StateStoreProvider with ProviderSince41

private[statestore] trait ReadStoreSince42 extends ReadStateStore

private[statestore] trait WriteStoreSince42 extends StateStore

/** Keys with a timestamp as their last column, ordered by it first. */
private[statestore] object TimestampPrefixKeys {
  def apply(keySchema: StructType): KeyStateEncoderSpec = TimestampAsPrefixKeyStateEncoderSpec(keySchema)

  def unapply(spec: KeyStateEncoderSpec): Option[StructType] = spec match {
    case TimestampAsPrefixKeyStateEncoderSpec(keySchema) => Some(keySchema)
    case _ => None
  }
}

/** Keys with a timestamp as their last column, ordered by it last. */
private[statestore] object TimestampPostfixKeys {
  def apply(keySchema: StructType): KeyStateEncoderSpec = TimestampAsPostfixKeyStateEncoderSpec(keySchema)

  def unapply(spec: KeyStateEncoderSpec): Option[StructType] = spec match {
    case TimestampAsPostfixKeyStateEncoderSpec(keySchema) => Some(keySchema)
    case _ => None
  }
}

/** Spark's reader of change logs, with nothing to read by itself. */
private[statestore] abstract class ChangeDataReader(
    id: StateStoreId, startVersion: Long, endVersion: Long, conf: StateStoreConf, family: String)
  extends StateStoreChangeDataReader(id, null, null, startVersion, endVersion, null, conf, Some(family)) {

  override protected val changelogSuffix: String = ""
}
