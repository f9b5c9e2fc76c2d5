package org.apache.spark.sql.statestore.convert

import java.util.Base64

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import org.apache.hadoop.fs.{FSDataInputStream, FSInputStream}

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.compat.TimestampPrefixKeys
import org.apache.spark.sql.types.StructType

/** A column family as its operator declares it. */
private[convert] final case class Family(
    name: String,
    keySchema: StructType,
    valueSchema: StructType,
    spec: KeyStateEncoderSpec,
    hasLists: Boolean,
    isInternal: Boolean) {

  /** True if operators scan ranges over all keys. Where they scan those within a key, keys are in any order. */
  def isOrdered: Boolean = spec match {
    case _: RangeKeyScanStateEncoderSpec | TimestampPrefixKeys(_) => true
    case _ => false
  }
}

/**
 * One store of a stateful operator, in all partitions.
 *
 * @param ids  its checkpoint ids by partition in Spark's checkpoint format v2, empty in v1
 */
private[convert] final case class StoreSpec(
    operator: Long,
    name: String,
    hasFamilies: Boolean,
    families: Seq[Family],
    partitions: Int,
    ids: Seq[String]) {

  /** The family that a provider is initialised with; with column families its schema is a dummy. */
  def default: Family =
    families.find(_.name == StateStore.DEFAULT_COL_FAMILY_NAME).getOrElse {
      val any = families.head
      Family(StateStore.DEFAULT_COL_FAMILY_NAME, any.keySchema, any.valueSchema,
        NoPrefixKeyStateEncoderSpec(any.keySchema), hasLists = false, isInternal = false)
    }

  def id(partition: Int): Option[String] = ids.lift(partition)
}

private[convert] object StoreSpec {
  /** Reads a store's description, which has the content of its schema files. */
  def read(node: JsonNode): StoreSpec = {
    val hasFamilies = node.path("hasFamilies").asBoolean
    val lists = texts(node.path("lists")).toSet
    val internal = texts(node.path("internal")).toSet
    val prefixColumns = node.path("prefixColumns").asInt
    // The newest file comes last. A family that it lacks may still have rows.
    val schemas = texts(node.path("schemas")).flatMap(readSchemas)
    // With column families the default one is a dummy, which some releases list.
    val families = schemas.filterNot(hasFamilies && _.colFamilyName == StateStore.DEFAULT_COL_FAMILY_NAME)
      .map(schema => schema.colFamilyName -> schema).toMap.values.toSeq.sortBy(_.colFamilyName)
    StoreSpec(
      node.path("operator").asLong,
      node.path("name").asText,
      hasFamilies,
      families.map { schema =>
        val spec = schema.keyStateEncoderSpec.getOrElse {
          if (prefixColumns > 0) PrefixKeyScanStateEncoderSpec(schema.keySchema, prefixColumns)
          else NoPrefixKeyStateEncoderSpec(schema.keySchema)
        }
        val name = schema.colFamilyName
        Family(name, schema.keySchema, schema.valueSchema, spec, lists(name), internal(name) || name.startsWith("$"))
      },
      node.path("partitions").asInt,
      texts(node.path("ids")))
  }

  private def readSchemas(content: String): Seq[StateStoreColFamilySchema] =
    StateSchemaCompatibilityChecker.readSchemaFile(new FSDataInputStream(new SchemaFile(Base64.getDecoder.decode(content))))

  private final class SchemaFile(content: Array[Byte]) extends FSInputStream {
    private var position = 0

    override def read(): Int = if (position == content.length) -1 else {
      position += 1
      content(position - 1) & 0xff
    }

    override def seek(to: Long): Unit = position = to.toInt

    override def getPos: Long = position

    override def seekToNewSource(to: Long): Boolean = false
  }

  private def texts(node: JsonNode): Seq[String] = node.elements().asScala.map(_.asText).toSeq
}
