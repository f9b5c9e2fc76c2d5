package org.apache.spark.sql.statestore

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.compat.{TimestampPostfixKeys, TimestampPrefixKeys}
import org.apache.spark.sql.types.{StructField, StructType}

/**
 * A column family as a test declares it: `{"key": DDL, "value": DDL, "spec": ["range", 0, 2],
 * "multiple": false, "internal": false}`, and the codecs of its rows.
 */
final class HarnessFamily(declared: JsonNode) {
  val keySchema: StructType = HarnessFamily.schema(declared.get("key").asText)
  val valueSchema: StructType = HarnessFamily.schema(declared.get("value").asText)
  val multiple: Boolean = declared.get("multiple").asBoolean
  val internal: Boolean = declared.get("internal").asBoolean

  private val kind = declared.get("spec").get(0).asText
  private val numbers =
    Seq.tabulate(declared.get("spec").size - 1)(i => declared.get("spec").get(i + 1).asInt)

  val spec: KeyStateEncoderSpec = kind match {
    case "none" => NoPrefixKeyStateEncoderSpec(keySchema)
    case "prefix" => PrefixKeyScanStateEncoderSpec(keySchema, numbers.head)
    case "range" => RangeKeyScanStateEncoderSpec(keySchema, numbers)
    case "timestampPrefix" => TimestampPrefixKeys(keySchema)
    case "timestampPostfix" => TimestampPostfixKeys(keySchema)
  }

  val keys: RowCodec = RowCodec.of("key", keySchema)
  val values: RowCodec = RowCodec.of("value", valueSchema)

  // The row of a prefix scan; for specs without one any row, so that the refusal can be tested.
  lazy val prefixes: RowCodec = RowCodec.of("prefix", kind match {
    case "prefix" => StructType(keySchema.take(numbers.head))
    case "range" => StructType(numbers.map(keySchema(_)))
    case "timestampPostfix" => StructType(keySchema.init)
    case _ => StructType(keySchema.take(1))
  })
}

object HarnessFamily {
  private val schemas = new java.util.concurrent.ConcurrentHashMap[String, StructType]

  /** An empty text is no column at all, as a global aggregation's key. */
  private def schema(ddl: String): StructType = schemas.computeIfAbsent(ddl, _ => {
    if (ddl.isEmpty) new StructType(Array.empty[StructField]) else StructType.fromDDL(ddl)
  })
}
