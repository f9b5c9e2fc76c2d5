package org.apache.spark.sql.statestore.families

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.{JsonNodeFactory, ObjectNode}

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.{BackendException, UnsupportedFeatureException}
import org.apache.spark.sql.statestore.io.CheckpointClient
import org.apache.spark.sql.statestore.table._
import org.apache.spark.sql.types.{DataType, NullType, StructType, UserDefinedType}
import org.apache.spark.util.Utils

/**
 * What a column family is: its name, its rows' schemas, how its keys are found, and whether a key
 * may have several values.
 *
 * Guarantees: what is written into a checkpoint gives the same family again.
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

  def newTable(): StateTable = {
    def table(prefix: Option[PrefixProjection], order: Option[KeyOrder]): StateTable =
      new StateTable(keySchema.length, valueSchema.length, hasLists, prefix, order)
    spec match {
      case PrefixKeyScanStateEncoderSpec(_, columns) => table(Some(new PrefixProjection(keySchema, columns)), None)
      case RangeKeyScanStateEncoderSpec(_, ordinals) =>
        table(None, Some(new ColumnOrder(keySchema, ordinals.toArray, scansPrefixes = true)))
      case TimestampAsPrefixKeyStateEncoderSpec(_) =>
        table(None, Some(new ColumnOrder(keySchema, Array(keySchema.length - 1), scansPrefixes = false)))
      case TimestampAsPostfixKeyStateEncoderSpec(_) => table(None, Some(new TimestampLastOrder(keySchema)))
      case _ => table(None, None)
    }
  }

  /** Whether rows of the other family can be taken as this one's: names and nullability may differ. */
  def fits(other: FamilySchema): Boolean =
    (spec == other.spec || encoder == other.encoder && prefixColumns == other.prefixColumns &&
      orderingColumns == other.orderingColumns && sameTypes(keySchema, other.keySchema)) &&
      hasLists == other.hasLists &&
      (valueSchema == other.valueSchema || sameTypes(valueSchema, other.valueSchema))

  /** Whether nothing at all differs. */
  def isSame(other: FamilySchema): Boolean =
    spec == other.spec && valueSchema == other.valueSchema && hasLists == other.hasLists &&
      isInternal == other.isInternal

  /** What the metadata says of the state, see docs/format.md. */
  def describe(keys: Long, values: Long, since: Long): ObjectNode = {
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
    node.put("since", since)
    node
  }

  override def toString: String = {
    val lists = if (hasLists) ", several values per key" else ""
    s"$encoder keys ${keySchema.sql}, values ${valueSchema.sql}$lists"
  }

  private def encoder: String = spec match {
    case _: PrefixKeyScanStateEncoderSpec => Prefix
    case _: RangeKeyScanStateEncoderSpec => Range
    case _: TimestampAsPrefixKeyStateEncoderSpec => TimestampPrefix
    case _: TimestampAsPostfixKeyStateEncoderSpec => TimestampPostfix
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

  /** A family as an operator describes it, checked. */
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

  /** The family that a checkpoint describes. */
  def read(node: JsonNode): FamilySchema = {
    val keySchema = schemaOf(node, "keySchema")
    val spec = node.path("keyEncoder").asText match {
      case Hash => NoPrefixKeyStateEncoderSpec(keySchema)
      case Prefix => PrefixKeyScanStateEncoderSpec(keySchema, node.path("prefixColumns").asInt)
      case Range =>
        val ordinals = node.path("orderingColumns").elements().asScala.map(_.asInt).toSeq
        RangeKeyScanStateEncoderSpec(keySchema, ordinals)
      case TimestampPrefix => TimestampAsPrefixKeyStateEncoderSpec(keySchema)
      case TimestampPostfix => TimestampAsPostfixKeyStateEncoderSpec(keySchema)
      case other =>
        throw new UnsupportedFeatureException(
          s"the column family ${node.path("name").asText} has keys encoded as '$other', which this release does not " +
            "know. Use the release of spark-statestore that wrote the checkpoint, or a newer one; nothing was changed.")
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

  // Spark makes an object of any class that a schema names as a user-defined type, and asks later whether it is one.
  private def requireOwnTypes(node: JsonNode): Unit = {
    if (node.has("class") && node.has("sqlType")) {
      val name = node.get("class").asText
      if (!classOf[UserDefinedType[_]].isAssignableFrom(Utils.classForName[AnyRef](name, initialize = false))) {
        throw new BackendException("CorruptCheckpointError",
          s"a schema in the checkpoint names the class $name as a user-defined type, which it is not. The metadata is " +
            "damaged or was tampered with; restore an earlier version.")
      }
    }
    node.forEach(requireOwnTypes(_))
  }

  private def sameTypes(a: StructType, b: StructType): Boolean =
    a.length == b.length && a.zip(b).forall { case (x, y) =>
      DataType.equalsStructurally(x.dataType, y.dataType, ignoreNullability = true)
    }
}
