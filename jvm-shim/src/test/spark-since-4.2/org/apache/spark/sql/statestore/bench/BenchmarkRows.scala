package org.apache.spark.sql.statestore.bench

import org.apache.spark.sql.catalyst.expressions.{SpecificInternalRow, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.types._

/**
 * Rows of benchmarks, built as operators build them, in buffers that the next row reuses: a key is two
 * longs, a value is the number of its key, its batch and an incompressible long.
 */
private[bench] final class BenchmarkRows {
  import BenchmarkRows._

  private val projectKey = UnsafeProjection.create(KeySchema)
  private val projectValue = UnsafeProjection.create(ValueSchema)
  private val keyFields = new SpecificInternalRow(KeySchema)
  private val valueFields = new SpecificInternalRow(ValueSchema)

  def key(number: Int): UnsafeRow = {
    keyFields.setLong(0, number.toLong)
    keyFields.setLong(1, mix(number.toLong))
    projectKey(keyFields)
  }

  def value(number: Int, batch: Long): UnsafeRow = {
    valueFields.setLong(0, number.toLong)
    valueFields.setLong(BatchColumn, batch)
    valueFields.setLong(2, mix(number.toLong ^ batch << 32))
    projectValue(valueFields)
  }
}

private[bench] object BenchmarkRows {
  val KeySchema: StructType = StructType.fromDDL("a bigint, b bigint")
  val ValueSchema: StructType = StructType.fromDDL("key bigint, batch bigint, noise bigint")
  final val BatchColumn = 1

  /** A bijection (the finalizer of splitmix64): distinct numbers give distinct, incompressible ones. */
  def mix(number: Long): Long = {
    val a = (number ^ number >>> 30) * 0xbf58476d1ce4e5b9L
    val b = (a ^ a >>> 27) * 0x94d049bb133111ebL
    b ^ b >>> 31
  }
}
