package org.apache.spark.sql.statestore

import java.util.HexFormat

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ArrayNode

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.types.UTF8String

/**
 * Codec between rows and JSON arrays, for the types that the tests use. A float or a double is encoded as
 * the integer of its bits, binary as hexadecimal digits; a number for a string is so many letters z.
 *
 * A row is reused by the thread's next call with the same codec, as an operator would reuse it.
 * Every other one starts in the middle of a larger array. A decoded row must be byte-identical to the
 * encoded one.
 */
final class RowCodec private (schema: StructType) {
  import RowCodec._

  private final class Scratch {
    val put: UnsafeProjection = UnsafeProjection.create(schema)
    val check: UnsafeProjection = UnsafeProjection.create(schema)
    val shifted = new UnsafeRow(schema.length)
    var bytes = new Array[Byte](64)
  }

  private val scratch = ThreadLocal.withInitial(() => new Scratch)

  def row(values: JsonNode): UnsafeRow = {
    val buffer = scratch.get
    val row = buffer.put(internal(values))
    if ((row.hashCode & 1) == 0) row else shift(row, buffer)
  }

  def rows(many: JsonNode): Array[UnsafeRow] =
    Array.tabulate(many.size)(i => row(many.get(i)).copy())

  def json(row: UnsafeRow): ArrayNode = {
    if (row == null) return null
    require(row.numFields == schema.length, s"a row of ${row.numFields} fields where $schema was put")
    val values = mapper.createArrayNode()
    schema.fields.zipWithIndex.foreach { case (field, i) =>
      if (row.isNullAt(i)) values.addNull() else add(values, row, i, field.dataType)
    }
    val put = scratch.get.check(internal(values))
    if (put != row) {
      throw new AssertionError(s"the row $row came back in other bytes than $put, which was put: $values")
    }
    values
  }

  private def internal(values: JsonNode): InternalRow = {
    require(values.size == schema.length, s"$values does not fit $schema")
    InternalRow.fromSeq(schema.fields.toSeq.zipWithIndex.map { case (field, i) =>
      value(values.get(i), field.dataType)
    })
  }

  private def shift(row: UnsafeRow, buffer: Scratch): UnsafeRow = {
    val size = row.getSizeInBytes
    if (buffer.bytes.length < size + 2 * Margin) buffer.bytes = new Array[Byte](size + 2 * Margin)
    java.util.Arrays.fill(buffer.bytes, 0, size + 2 * Margin, 0xAB.toByte)
    val start = Platform.BYTE_ARRAY_OFFSET + Margin
    Platform.copyMemory(row.getBaseObject, row.getBaseOffset, buffer.bytes, start, size)
    buffer.shifted.pointTo(buffer.bytes, start, size)
    buffer.shifted
  }
}

object RowCodec {
  val mapper = new ObjectMapper

  private final val Margin = 8
  private val codecs = new java.util.concurrent.ConcurrentHashMap[(String, StructType), RowCodec]

  // Making a projection costs more than a test's whole step.
  def of(role: String, schema: StructType): RowCodec =
    codecs.computeIfAbsent((role, schema), _ => new RowCodec(schema))

  private def add(values: ArrayNode, row: UnsafeRow, i: Int, dataType: DataType): Unit = dataType match {
    case BooleanType => values.add(row.getBoolean(i))
    case ByteType => values.add(row.getByte(i).toInt)
    case ShortType => values.add(row.getShort(i).toInt)
    case IntegerType => values.add(row.getInt(i))
    case LongType => values.add(row.getLong(i))
    // The bits as they lie there: a float that passes through a register may lose its payload.
    case FloatType => values.add(row.getInt(i))
    case DoubleType => values.add(row.getLong(i))
    case BinaryType => values.add(HexFormat.of.formatHex(row.getBinary(i)))
    case StringType =>
      val text = row.getUTF8String(i).toString
      if (text.length > 100 && text.forall(_ == 'z')) values.add(text.length) else values.add(text)
    case _ => throw new IllegalArgumentException(s"the harness has no rows with $dataType")
  }

  private def value(node: JsonNode, dataType: DataType): Any = dataType match {
    case _ if node.isNull => null
    case BooleanType => node.asBoolean
    case ByteType => node.asInt.toByte
    case ShortType => node.asInt.toShort
    case IntegerType => node.asInt
    case LongType => node.asLong
    case FloatType => java.lang.Float.intBitsToFloat(node.asInt)
    case DoubleType => java.lang.Double.longBitsToDouble(node.asLong)
    case BinaryType => HexFormat.of.parseHex(node.asText)
    case StringType if node.isNumber => UTF8String.fromString("z" * node.asInt)
    case StringType => UTF8String.fromString(node.asText)
    case _ => throw new IllegalArgumentException(s"the harness has no rows with $dataType")
  }
}
