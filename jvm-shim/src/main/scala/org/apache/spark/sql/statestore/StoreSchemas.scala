package org.apache.spark.sql.statestore

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.io.CheckpointClient
import org.apache.spark.sql.statestore.table.{PrefixProjection, StateTable}
import org.apache.spark.sql.types.StructType

/** Schemas and key encoding of a store's default column family. */
private[statestore] final class StoreSchemas private (
    spec: KeyStateEncoderSpec, valueSchema: StructType, val prefixColumns: Int) {
  private val keyJson = spec.keySchema.json
  private val valueJson = valueSchema.json

  def name: String = StateStore.DEFAULT_COL_FAMILY_NAME

  def newTable(): StateTable = new StateTable(
    spec.keySchema.length, valueSchema.length,
    if (prefixColumns > 0) Some(new PrefixProjection(spec.keySchema, prefixColumns)) else None)

  /** What the metadata says of the state, see docs/format.md. */
  def describe(rows: Long): ObjectNode = {
    val node = CheckpointClient.mapper.createObjectNode()
    node.put("name", name)
    node.put("rows", rows)
    node.put("keySchema", keyJson)
    node.put("valueSchema", valueJson)
    node.put("keyEncoder", if (prefixColumns > 0) "prefix" else "hash")
    node.put("prefixColumns", prefixColumns)
    node
  }
}

private[statestore] object StoreSchemas {
  def apply(spec: KeyStateEncoderSpec, valueSchema: StructType, store: String): StoreSchemas = spec match {
    case NoPrefixKeyStateEncoderSpec(_) => new StoreSchemas(spec, valueSchema, 0)
    case PrefixKeyScanStateEncoderSpec(keySchema, columns) =>
      if (columns <= 0 || columns >= keySchema.length) {
        throw StateStoreErrors.incorrectNumOrderingColsForPrefixScan(columns.toString)
      }
      new StoreSchemas(spec, valueSchema, columns)
    case other =>
      throw new UnsupportedFeatureException(
        s"the key encoding ${other.getClass.getSimpleName} is not supported yet: $store")
  }
}
