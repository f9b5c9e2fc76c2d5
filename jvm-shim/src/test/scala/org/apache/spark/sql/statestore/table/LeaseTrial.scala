package org.apache.spark.sql.statestore.table

import java.util.concurrent.atomic.{AtomicLong, AtomicReference}

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.statestore.provider.LeasedIterator
import org.apache.spark.unsafe.Platform

/**
 * Test of a table whose memory is freed while threads of no task still read it: each must get its rows, or an
 * IllegalStateException. A read of unmapped memory would end the JVM.
 *
 * @param keys     number of keys
 * @param readers  number of threads
 */
class LeaseTrial(keys: Int, readers: Int) {
  private val rowsRead = new AtomicLong
  private val failure = new AtomicReference[Throwable]

  /** Frees so many tables; returns the largest growth of the bytes of mapped files, and the rows that were read. */
  def run(rounds: Int): Array[Long] = try {
    TableMemory.limitHeap(0L)
    val growth = (1 to rounds).map(round)
    if (failure.get != null) throw failure.get
    Array(growth.max, rowsRead.get)
  } finally {
    TableMemory.limitHeap(TableMemory.defaultLimit)
  }

  private def round(number: Int): Long = {
    val before = TableMemory.mappedBytes
    val table = new StateTable(1, 1)
    (0 until keys).foreach(key => table.put(row(key), row(-key)))
    val retiredMemory = new RetiredMemory
    val lease = retiredMemory.newLease()
    val threads = Seq.fill(readers)(new Thread(() => scan(table, lease)))
    threads.foreach(_.start())
    Thread.sleep(number % 7)
    retiredMemory.retire(table.takeMemory())
    lease.close()
    threads.foreach(_.join())
    TableMemory.mappedBytes - before
  }

  private def scan(table: StateTable, lease: ReadLease): Unit =
    try {
      while (true) {
        val pinned = lease.enter()
        val rows = try new LeasedIterator(lease, table.iterator()) finally lease.exit(pinned)
        while (rows.hasNext) {
          val pair = rows.next()
          require(pair.key.getLong(0) == -pair.value.getLong(0), "a row is damaged")
          rowsRead.incrementAndGet()
        }
      }
    } catch {
      case _: IllegalStateException =>
      case e: Throwable => failure.set(e)
    }

  private def row(number: Long): UnsafeRow = {
    val bytes = new Array[Byte](256)
    Platform.putLong(bytes, Platform.BYTE_ARRAY_OFFSET + 8L, number)
    val unsafeRow = new UnsafeRow(1)
    unsafeRow.pointTo(bytes, bytes.length)
    unsafeRow
  }
}
