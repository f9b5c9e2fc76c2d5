package org.apache.spark.sql.statestore.table

import org.apache.spark.sql.catalyst.expressions.{BoundReference, Expression, Literal, UnsafeProjection, UnsafeRow,
  XXH64}
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.Platform

/**
 * A total order of keys by their bytes: first by their words, then by `compare`.
 *
 * Guarantees: `compare` is 0 for equal bytes only, and refines `compareLeading`. Keys that are equal
 * under `compareLeading` have the same word. Any number of threads may use an order.
 */
private[statestore] sealed abstract class KeyOrder {
  /** Returns the key's word, by which keys are ordered first. */
  def word(base: Object, offset: Long, length: Int): Long

  def compare(a: Object, aOffset: Long, aLength: Int, b: Object, bOffset: Long, bLength: Int): Int

  /** Compares the columns of a prefix scan only. */
  def compareLeading(a: Object, aOffset: Long, aLength: Int, b: Object, bOffset: Long, bLength: Int): Int

  /** True if keys are ordered within groups of equal leading columns only. */
  def hasGroups: Boolean

  def areOfOneGroup(a: UnsafeRow, b: UnsafeRow): Boolean = compareLeading(
    a.getBaseObject, a.getBaseOffset, a.getSizeInBytes, b.getBaseObject, b.getBaseOffset, b.getSizeInBytes) == 0

  /** True if prefix scans are allowed. */
  def scansPrefixes: Boolean

  /** Returns the bytes of a key with the columns of a prefix scan. */
  def keyOf(prefix: UnsafeRow): Array[Byte]
}

/**
 * Spark's order for range scans: by the ordering columns, each with negative numbers first and nulls
 * last; floating point numbers by sign and bits, so -0.0 comes before 0.0 and NaN after
 * infinity. Ties are broken by the bytes of the key.
 *
 * @param ordinals  the ordering columns, the first one first
 */
private[statestore] final class ColumnOrder(
    schema: StructType, ordinals: Array[Int], override val scansPrefixes: Boolean) extends KeyOrder {
  import KeyOrder._

  private val kinds = ordinals.map(ordinal => kindOf(schema(ordinal)))
  private val fieldOffsets = ordinals.map(ordinal =>
    UnsafeRow.calculateBitSetWidthInBytes(schema.length) + 8L * ordinal)
  private lazy val complete = {
    val columns = schema.fields.toSeq.zipWithIndex.map[Expression] { case (field, i) =>
      val at = ordinals.indexOf(i)
      if (at >= 0) BoundReference(at, field.dataType, nullable = true) else Literal(null, field.dataType)
    }
    new SharedProjection(columns)
  }

  override def hasGroups: Boolean = false

  override def word(base: Object, offset: Long, length: Int): Long =
    if (isNull(base, offset, ordinals(0))) Long.MaxValue else valueOf(base, offset, 0)

  override def compare(
      a: Object, aOffset: Long, aLength: Int, b: Object, bOffset: Long, bLength: Int): Int = {
    val leading = compareLeading(a, aOffset, aLength, b, bOffset, bLength)
    if (leading != 0) leading else compareBytes(a, aOffset, aLength, b, bOffset, bLength)
  }

  override def compareLeading(
      a: Object, aOffset: Long, aLength: Int, b: Object, bOffset: Long, bLength: Int): Int = {
    var i = 0
    var result = 0
    while (result == 0 && i < ordinals.length) {
      val aNull = isNull(a, aOffset, ordinals(i))
      val bNull = isNull(b, bOffset, ordinals(i))
      result =
        if (aNull || bNull) java.lang.Boolean.compare(aNull, bNull)
        else java.lang.Long.compare(valueOf(a, aOffset, i), valueOf(b, bOffset, i))
      i += 1
    }
    result
  }

  override def keyOf(prefix: UnsafeRow): Array[Byte] = complete.bytesOf(prefix)

  private def isNull(base: Object, offset: Long, ordinal: Int): Boolean =
    (Platform.getLong(base, offset + ((ordinal >> 6) << 3)) >>> (ordinal & 63) & 1L) != 0L

  private def valueOf(base: Object, offset: Long, i: Int): Long = {
    val at = offset + fieldOffsets(i)
    kinds(i) match {
      case Bytes1 => Platform.getByte(base, at).toLong
      case Bytes2 => Platform.getShort(base, at).toLong
      case Bytes4 => Platform.getInt(base, at).toLong
      case Bytes8 => Platform.getLong(base, at)
      case Float4 =>
        val bits = Platform.getInt(base, at)
        (bits ^ ((bits >> 31) & Int.MaxValue)).toLong
      case Float8 =>
        val bits = Platform.getLong(base, at)
        bits ^ ((bits >> 63) & Long.MaxValue)
    }
  }
}

/**
 * Keys grouped by all columns but the last, a timestamp that orders them within their group. In
 * which order the groups come is by hash, and means nothing.
 */
private[statestore] final class TimestampLastOrder(schema: StructType) extends KeyOrder {
  import KeyOrder._

  private val fieldOffset = UnsafeRow.calculateBitSetWidthInBytes(schema.length) + 8L * (schema.length - 1)
  private lazy val complete = {
    val columns = schema.fields.toSeq.dropRight(1).zipWithIndex.map[Expression] { case (field, i) =>
      BoundReference(i, field.dataType, nullable = true)
    }
    new SharedProjection(columns :+ Literal(Long.MinValue, LongType))
  }

  override def hasGroups: Boolean = true

  override def scansPrefixes: Boolean = true

  override def word(base: Object, offset: Long, length: Int): Long = {
    val before = XXH64.hashUnsafeWords(base, offset, fieldOffset.toInt, Seed)
    XXH64.hashUnsafeWords(base, offset + fieldOffset + 8, length - fieldOffset.toInt - 8, before)
  }

  override def compare(
      a: Object, aOffset: Long, aLength: Int, b: Object, bOffset: Long, bLength: Int): Int = {
    val leading = compareLeading(a, aOffset, aLength, b, bOffset, bLength)
    if (leading != 0) leading
    else java.lang.Long.compare(Platform.getLong(a, aOffset + fieldOffset), Platform.getLong(b, bOffset + fieldOffset))
  }

  override def compareLeading(
      a: Object, aOffset: Long, aLength: Int, b: Object, bOffset: Long, bLength: Int): Int = {
    val before = compareBytes(a, aOffset, fieldOffset.toInt, b, bOffset, fieldOffset.toInt)
    if (before != 0) {
      before
    } else {
      val behind = fieldOffset + 8
      compareBytes(a, aOffset + behind, aLength - behind.toInt, b, bOffset + behind, bLength - behind.toInt)
    }
  }

  override def keyOf(prefix: UnsafeRow): Array[Byte] = complete.bytesOf(prefix)
}

/** A projection for several threads: its code is generated once, and it is used once for each scan. */
private final class SharedProjection(columns: Seq[Expression]) {
  private val project = UnsafeProjection.create(columns)

  /** Returns the bytes of a row that are the caller's own. */
  def bytesOf(row: UnsafeRow): Array[Byte] = synchronized(KeyOrder.copyOf(project(row)))
}

private[statestore] object KeyOrder {
  private[table] final val Bytes1 = 0
  private[table] final val Bytes2 = 1
  private[table] final val Bytes4 = 2
  private[table] final val Bytes8 = 3
  private[table] final val Float4 = 4
  private[table] final val Float8 = 5

  private[table] final val Seed = 0x5ca1ab1eL

  private[table] def kindOf(field: StructField): Int = field.dataType match {
    case ByteType | BooleanType => Bytes1
    case ShortType => Bytes2
    case IntegerType | DateType | _: YearMonthIntervalType => Bytes4
    case LongType | TimestampType | TimestampNTZType | _: DayTimeIntervalType => Bytes8
    case FloatType => Float4
    case DoubleType => Float8
    case dataType => throw new IllegalArgumentException(
      s"the column ${field.name} is ${dataType.sql}, by which a state cannot be ordered: it must have a fixed size")
  }

  /** Returns a copy of a row's bytes. */
  private[table] def copyOf(row: UnsafeRow): Array[Byte] = {
    val bytes = new Array[Byte](row.getSizeInBytes)
    row.writeToMemory(bytes, Platform.BYTE_ARRAY_OFFSET.toLong)
    bytes
  }

  private[table] def compareBytes(
      a: Object, aOffset: Long, aLength: Int, b: Object, bOffset: Long, bLength: Int): Int = {
    val common = math.min(aLength, bLength)
    var i = 0
    // Rows are whole words; the first word that differs is compared byte by byte, as stored.
    while (i + 8 <= common && Platform.getLong(a, aOffset + i) == Platform.getLong(b, bOffset + i)) i += 8
    while (i < common && Platform.getByte(a, aOffset + i) == Platform.getByte(b, bOffset + i)) i += 1
    if (i < common) {
      java.lang.Integer.compare(
        Platform.getByte(a, aOffset + i) & 0xff, Platform.getByte(b, bOffset + i) & 0xff)
    } else {
      java.lang.Integer.compare(aLength, bLength)
    }
  }
}
