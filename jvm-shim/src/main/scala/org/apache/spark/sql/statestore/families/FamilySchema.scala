package org.apache.spark.sql.statestore.families

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.{JsonNodeFactory, ObjectNode}

import org.apache.spark.sql.catalyst.expressions.{BoundReference, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.{BackendException, UnsupportedFeatureException}
import org.apache.spark.sql.statestore.backend.CheckpointClient
import org.apache.spark.sql.statestore.compat.{TimestampPostfixKeys, TimestampPrefixKeys}
import org.apache.spark.sql.statestore.table.{ColumnOrder, KeyHash, KeyOrder, PrefixProjection, StateTable, TimestampLastOrder}
import org.apache.spark.sql.types.{DataType, NullType, StructType, UserDefinedType}
import org.apache.spark.util.Utils

/**
 * Schema of a column family: its name, the schemas of its rows, the encoder of its keys, and whether a
 * key may have several values.
 *
 * Guarantees: `read` returns the same schema from what `describe` writes.
 */
private[statestore] final class FamilySchema(
    val name: String,
    val spec: KeyStateEncoderSpec,
    val valueSchema: StructType,
    val hasLists: Boolean,
    val isInternal: Boolean) {
  import FamilySchema._

  private lazy val keyJson = keySchema.json
  private lazy val valueJson = valueSchema.json

  def keySchema: StructType = spec.keySchema

  def newTable(keyHash: KeyHash = KeyHash.ofProcess): StateTable = {
    def table(prefix: Option[PrefixProjection], order: Option[KeyOrder]): StateTable =
      new StateTable(keySchema.length, valueSchema.length, hasLists, prefix, order, keyHash)
    spec match {
      case PrefixKeyScanStateEncoderSpec(_, columns) => table(Some(new PrefixProjection(keySchema, columns)), None)
      case RangeKeyScanStateEncoderSpec(_, ordinals) =>
        table(None, Some(new ColumnOrder(keySchema, ordinals.toArray, scansPrefixes = true)))
      case TimestampPrefixKeys(_) =>
        table(None, Some(new ColumnOrder(keySchema, Array(keySchema.length - 1), scansPrefixes = false)))
      case TimestampPostfixKeys(_) => table(None, Some(new TimestampLastOrder(keySchema)))
      case _ => table(None, None)
    }
  }

  /** True if rows of the other schema are valid for this one: names and nullability may differ. */
  def fits(schema: FamilySchema): Boolean = hasKeysOf(schema) && hasValuesOf(schema)

  /** True if keys of the other schema, and their numbers of values, are valid for this one. */
  def hasKeysOf(schema: FamilySchema): Boolean =
    (spec == schema.spec || encoder == schema.encoder && prefixColumns == schema.prefixColumns &&
      orderingColumns == schema.orderingColumns && sameTypes(keySchema, schema.keySchema) && !reordersKeysOf(schema)) &&
      hasLists == schema.hasLists

  /** Fails if an operator declares the columns of this stored key in another order: no row would be found. */
  def requireKeyOrder(declared: FamilySchema, store: String): Unit = if (reordersKeysOf(declared)) {
    throw new UnsupportedFeatureException(
      s"the column family $name has $this, but the query declares it with $declared: the columns of the key are in another " +
        "order, and no row would be found. Restore their order in the query. dropDuplicates by more than four columns " +
        "that began on Spark 4.3 does not continue on an earlier one, which orders them by itself: use 4.3, or a savepoint " +
        s"from before. Nothing was changed: $store")
  }

  private def reordersKeysOf(schema: FamilySchema): Boolean = {
    val names = keySchema.fieldNames
    val otherNames = schema.keySchema.fieldNames
    names.distinct.length == names.length && !names.sameElements(otherNames) && names.sorted.sameElements(otherNames.sorted)
  }

  private def hasValuesOf(schema: FamilySchema): Boolean =
    valueSchema == schema.valueSchema || sameTypes(valueSchema, schema.valueSchema)

  /** Returns this schema with another one of values. */
  def withValues(schema: StructType): FamilySchema = new FamilySchema(name, spec, schema, hasLists, isInternal)

  /**
   * True if Spark's state data source declares this family as `declaredSchema` for its option joinSide: it takes the event
   * time, the last column of the keys of a join of state format 4, for a column of the join, and adds another one.
   */
  def isJoinSide(declaredSchema: FamilySchema): Boolean =
    (encoder == TimestampPostfix || encoder == TimestampPrefix) && encoder == declaredSchema.encoder &&
      declaredSchema.keySchema.length == keySchema.length + 1 &&
      declaredSchema.keySchema.last.dataType == keySchema.last.dataType &&
      sameTypes(keySchema, StructType(declaredSchema.keySchema.init)) && sameTypes(valueSchema, declaredSchema.valueSchema) &&
      hasLists == declaredSchema.hasLists

  /** Returns a projection of keys to those that the reader of a join side expects: the event time comes twice. */
  def joinSideKeys(): UnsafeProjection =
    UnsafeProjection.create((keySchema.indices :+ (keySchema.length - 1)).map { ordinal =>
      BoundReference(ordinal, keySchema(ordinal).dataType, keySchema(ordinal).nullable)
    })

  /** True if the two are equal. */
  def isSame(schema: FamilySchema): Boolean =
    spec == schema.spec && valueSchema == schema.valueSchema && hasLists == schema.hasLists &&
      isInternal == schema.isInternal

  /** Returns the description of the family in metadata, see docs/format.md. */
  def describe(keys: Long, values: Long, createdAtVersion: Long): ObjectNode = {
    val node = JsonNodeFactory.instance.objectNode()
    node.put("name", name)
    node.put("rows", keys)
    if (hasLists) node.put("values", values)
    node.put("keySchema", keyJson)
    node.put("valueSchema", valueJson)
    node.put("keyEncoder", encoder)
    node.put("prefixColumns", prefixColumns)
    val ordering = node.putArray("orderingColumns")
    orderingColumns.foreach(ordering.add(_))
    node.put("internal", isInternal)
    node.put("createdAtVersion", createdAtVersion)
    node
  }

  override def toString: String = {
    val lists = if (hasLists) ", several values per key" else ""
    s"$encoder keys ${keySchema.sql}, values ${valueSchema.sql}$lists"
  }

  /** Describes what decides the layout and the order of the rows in memory: neither names nor values. */
  def layout: String =
    s"$encoder $prefixColumns ${orderingColumns.mkString(",")} ${keySchema.map(_.dataType.catalogString).mkString(",")} $hasLists"

  private def encoder: String = spec match {
    case _: PrefixKeyScanStateEncoderSpec => Prefix
    case _: RangeKeyScanStateEncoderSpec => Range
    case TimestampPrefixKeys(_) => TimestampPrefix
    case TimestampPostfixKeys(_) => TimestampPostfix
    case _ => Hash
  }

  private def prefixColumns: Int = spec match {
    case PrefixKeyScanStateEncoderSpec(_, columns) => columns
    case _ => 0
  }

  private def orderingColumns: Seq[Int] = spec match {
    case RangeKeyScanStateEncoderSpec(_, ordinals) => ordinals
    case _ => Nil
  }
}

private[statestore] object FamilySchema {
  private val Hash = "hash"
  private val Prefix = "prefix"
  private val Range = "range"
  private val TimestampPrefix = "timestampPrefix"
  private val TimestampPostfix = "timestampPostfix"

  /** Returns the schema that an operator declares, validated. */
  def apply(
      name: String, spec: KeyStateEncoderSpec, valueSchema: StructType, hasLists: Boolean,
      isInternal: Boolean): FamilySchema = {
    spec match {
      case RangeKeyScanStateEncoderSpec(keySchema, ordinals) => ordinals.foreach { ordinal =>
        val field = keySchema(ordinal)
        if (field.dataType == NullType) {
          throw StateStoreErrors.nullTypeOrderingColsNotSupported(field.name, ordinal.toString)
        }
        if (!UnsafeRow.isFixedLength(field.dataType)) {
          throw StateStoreErrors.variableSizeOrderingColsNotSupported(field.name, ordinal.toString)
        }
      }
      case _ =>
    }
    new FamilySchema(name, spec, valueSchema, hasLists, isInternal)
  }

  /** Returns the schema that a checkpoint describes. */
  def read(node: JsonNode): FamilySchema = {
    val keySchema = schemaOf(node, "keySchema")
    val spec = node.path("keyEncoder").asText match {
      case Hash => NoPrefixKeyStateEncoderSpec(keySchema)
      case Prefix => PrefixKeyScanStateEncoderSpec(keySchema, node.path("prefixColumns").asInt)
      case Range =>
        val ordinals = node.path("orderingColumns").elements().asScala.map(_.asInt).toSeq
        RangeKeyScanStateEncoderSpec(keySchema, ordinals)
      case TimestampPrefix => TimestampPrefixKeys(keySchema)
      case TimestampPostfix => TimestampPostfixKeys(keySchema)
      case keyEncoder =>
        throw new UnsupportedFeatureException(
          s"the column family ${node.path("name").asText} has keys encoded as '$keyEncoder', which this release does not " +
            "support. Use the release of spark-statestore that wrote the checkpoint, or a newer one; nothing was changed.")
    }
    apply(
      node.path("name").asText, spec, schemaOf(node, "valueSchema"), node.path("values").isNumber,
      node.path("internal").asBoolean)
  }

  private def schemaOf(node: JsonNode, field: String): StructType = {
    val text = node.path(field).asText
    requireOwnTypes(CheckpointClient.mapper.readTree(text))
    DataType.fromJson(text).asInstanceOf[StructType]
  }

  // Spark instantiates any class that a schema names as a user-defined type before it checks its type.
  private def requireOwnTypes(node: JsonNode): Unit = {
    if (node.has("class") && node.has("sqlType")) {
      val name = node.get("class").asText
      if (!classOf[UserDefinedType[_]].isAssignableFrom(Utils.classForName[AnyRef](name, initialize = false))) {
        throw new BackendException("CorruptCheckpointError",
          s"a schema in the checkpoint names the class $name as a user-defined type, which it is not. The metadata is " +
            "damaged or was tampered with; restore an earlier version. Nothing was changed.")
      }
    }
    node.forEach(requireOwnTypes(_))
  }

  private def sameTypes(a: StructType, b: StructType): Boolean =
    a.length == b.length && a.zip(b).forall { case (x, y) =>
      DataType.equalsStructurally(x.dataType, y.dataType, ignoreNullability = true)
    }
}
