package org.apache.spark.sql.statestore.families

import scala.jdk.CollectionConverters._
import scala.util.Try

import org.apache.avro.{SchemaValidationException, SchemaValidatorBuilder}

import org.apache.spark.sql.avro.SchemaConverters
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/**
 * Schema evolution of the values of transformWithState, which Spark permits with
 * `spark.sql.streaming.stateStore.encodingFormat=avro`. Rows are stored as UnsafeRow all the same: a column
 * family whose values have another schema is converted once, when the operator declares it.
 *
 * Guarantees: a value becomes what Spark's RocksDB provider returns for it, because it is encoded and decoded by
 * Spark's Avro encoder: columns are matched by name, numbers may be widened, added columns are null.
 *
 * @param schemas  the schemas of the operator's state. Spark passes them to operators whose values may change, of
 *                 which it has only transformWithState; they lack the newest one in a batch that is repeated
 */
private[statestore] final class ValueEvolution(schemas: Option[StateSchemaProvider]) {
  import ValueEvolution._

  /** Returns the conversion of stored values to another schema, None if there is none or none is needed. */
  def conversion(stored: FamilySchema, declaredSchema: FamilySchema): Option[UnsafeRow => UnsafeRow] = {
    val (from, to) = (stored.valueSchema.asNullable, declaredSchema.valueSchema.asNullable)
    val isWanted = schemas.isDefined && from != to && stored.hasKeysOf(declaredSchema)
    if (isWanted && isReadable(from, to)) Some(new Conversion(from, to)) else None
  }

  /** Returns the schema with the newest values that Spark has recorded for the family, else itself. */
  def newestOf(stored: FamilySchema): FamilySchema = schemas.fold(stored) { schemaProvider =>
    // Spark's providers fail for a family that they do not know.
    Try(schemaProvider.getCurrentStateSchemaId(stored.name, isKey = false)).fold(_ => stored, id =>
      stored.withValues(schemaProvider.getSchemaMetadataValue(StateSchemaMetadataKey(stored.name, id, isKey = false)).sqlSchema))
  }
}

private[statestore] object ValueEvolution {
  private val Family = "evolved"
  private val SchemaId: Short = 0
  private val noKey = NoPrefixKeyStateEncoderSpec(new StructType())

  /** Conversion of rows; returns the same row each time. */
  private final class Conversion(from: StructType, to: StructType) extends (UnsafeRow => UnsafeRow) {
    private val writerSchemas = new InMemoryStateSchemaProvider(StateSchemaMetadata(Map(
      StateSchemaMetadataKey(Family, SchemaId, isKey = false) ->
        StateSchemaMetadataValue(from, SchemaConverters.toAvroTypeWithDefaults(from)))))
    private val writer = new AvroStateEncoder(noKey, from, Some(writerSchemas), Family)
    private val reader = new AvroStateEncoder(noKey, to, Some(writerSchemas), Family)

    override def apply(value: UnsafeRow): UnsafeRow = reader.decodeValue(writer.encodeValue(value))
  }

  // Spark's own check, before the first batch with another schema.
  private def isReadable(from: StructType, to: StructType): Boolean =
    try {
      new SchemaValidatorBuilder().canReadStrategy.validateLatest().validate(
        SchemaConverters.toAvroTypeWithDefaults(to), Seq(SchemaConverters.toAvroTypeWithDefaults(from)).asJava)
      true
    } catch {
      case _: SchemaValidationException => false
    }
}
