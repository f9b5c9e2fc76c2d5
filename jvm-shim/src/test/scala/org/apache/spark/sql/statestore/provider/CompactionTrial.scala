package org.apache.spark.sql.statestore.provider

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.NoPrefixKeyStateEncoderSpec
import org.apache.spark.sql.statestore.families.{ColumnFamily, FamilySchema}
import org.apache.spark.sql.statestore.table.{StateTable, TableMemory}
import org.apache.spark.sql.types.StructType
import org.apache.spark.unsafe.Platform

/** Compactions that fail: the thread is interrupted, which closes the file that they need beyond the heap limit. */
object CompactionTrial {
  private val schema = new StructType().add("n", "long")

  /** True if a table that failed to be compacted in the background can be compacted by the next attempt. */
  def isRepeated: Boolean = {
    val table = family("a").table
    (0 until 2).foreach(_ => fill(table, 1_000, 1_000))
    val isFailed = fails(0L, table.beginCompaction().run())
    val isOver = !table.isCompacting
    table.beginCompaction().run()
    isFailed && isOver && table.adoptCompaction()
  }

  /**
   * Compacts two column families, of which the second one fails; returns the rows that the first one has after more
   * were put and rolled back.
   *
   * Memory that earlier tests have left may be freed meanwhile, so that the second one fits in the heap. Then it is
   * tried again.
   */
  def rowsAfterRollback: Long = Iterator.fill(10)(rowsAfterOne()).flatten.nextOption().getOrElse(
    throw new IllegalStateException("no compaction failed"))

  private def rowsAfterOne(): Option[Long] = {
    val families = Seq(family("small"), family("large"))
    val state = new LoadedState(0L, None, families, None, 2)
    (1 to 10).foreach { version =>
      fill(families.head.table, 100, 1_000)
      fill(families.last.table, 5_000, 1_000)
      state.committed(version.toLong, None)
    }
    val isFailed = fails(TableMemory.heapBytes + (4L << 20), state.compactIfWanted())
    families.head.table.put(row(-1L, 16), row(-1L, 16))
    state.rollback()
    try Option.when(isFailed)(families.head.table.numValues) finally state.drop()
  }

  private def fails(limit: Long, body: => Unit): Boolean = {
    TableMemory.limitHeap(limit)
    Thread.currentThread.interrupt()
    try {
      body
      false
    } catch {
      case _: java.nio.channels.ClosedByInterruptException => true
    } finally {
      Thread.interrupted()
      TableMemory.limitHeap(TableMemory.defaultLimit)
    }
  }

  private def family(name: String): ColumnFamily =
    ColumnFamily.empty(FamilySchema(name, NoPrefixKeyStateEncoderSpec(schema), schema, false, isInternal = false), 0L)

  private def fill(table: StateTable, keys: Int, bytes: Int): Unit = {
    val from = table.numKeys + table.tail
    (0 until keys).foreach(key => table.put(row(key.toLong, 16), row(from + key, bytes)))
  }

  private def row(number: Long, length: Int): UnsafeRow = {
    val bytes = new Array[Byte](length)
    Platform.putLong(bytes, Platform.BYTE_ARRAY_OFFSET + 8L, number)
    val unsafeRow = new UnsafeRow(1)
    unsafeRow.pointTo(bytes, length)
    unsafeRow
  }
}
