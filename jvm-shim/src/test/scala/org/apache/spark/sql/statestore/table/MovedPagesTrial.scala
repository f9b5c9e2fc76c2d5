package org.apache.spark.sql.statestore.table

import java.lang.ref.{Reference, WeakReference}
import java.util.concurrent.atomic.{AtomicLong, AtomicReference}

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.unsafe.Platform

/**
 * Test of a table whose pages are moved to files while threads read snapshots of it: of its first half, taken before the
 * log's arrays grew, and of all.
 *
 * @param keys  number of keys, each with a row of 512 bytes
 */
class MovedPagesTrial(keys: Int) {
  private val rowsRead = new AtomicLong
  private val failure = new AtomicReference[Throwable]
  @volatile private var ended = false

  /** Moves the pages of so many tables under two readers each; returns the reads that found a record in a file. */
  def run(rounds: Int): Long = {
    (1 to rounds).foreach(round)
    if (failure.get != null) throw failure.get
    rowsRead.get
  }

  /** True if pages that were moved can be collected while snapshots are in use. */
  def frees(): Boolean = {
    val table = new StateTable(1, 1)
    val snapshots = fill(table)
    val log = table.records.log
    val pages = (0L until log.tail by Log.PageBytes).map(at => new WeakReference(log.page(at)))
    while (table.moveToFiles()) {}
    System.gc()
    // The last page is not full.
    val freed = pages.init.forall(_.get == null) && pages.length > 8
    snapshots.foreach(Reference.reachabilityFence(_))
    table.discard()
    freed
  }

  private def fill(table: StateTable): Seq[TableSnapshot] = {
    put(table, 0 until keys / 2)
    val half = table.snapshot()
    put(table, keys / 2 until keys)
    Seq(half, table.snapshot())
  }

  private def round(number: Int): Unit = {
    val table = new StateTable(1, 1)
    val snapshots = fill(table)
    ended = false
    val threads = snapshots.map(snapshot => new Thread(() => guarded(readAll(table, snapshot))))
    threads.foreach(_.start())
    Thread.sleep(1 + number % 5)
    while (table.moveToFiles()) {}
    Thread.sleep(1)
    ended = true
    threads.foreach(_.join())
    table.discard()
  }

  private def guarded(body: => Unit): Unit = try body catch { case e: Throwable => failure.compareAndSet(null, e) }

  private def readAll(table: StateTable, snapshot: TableSnapshot): Unit = {
    val offsets = Array.newBuilder[Long]
    val scan = table.scan(snapshot.view)
    while (scan.advance()) offsets += scan.offset
    val all = offsets.result()
    val record = new LogRecord(table.header)
    var i = 0
    while (!ended) {
      record.pointTo(snapshot.view, all(i))
      val key = Platform.getLong(record.page, record.keyAddress + 8L)
      require(key == i, s"record $i has key $key")
      require(!(i % 97 == 0 && snapshot.view.deadAt(all(i)) != Record.None), s"record $i is superseded")
      if (record.page == null) rowsRead.incrementAndGet()
      i = (i + 1) % all.length
    }
  }

  private def put(table: StateTable, range: Range): Unit = range.foreach(key => table.put(row(key, 16), row(-key, 512)))

  private def row(number: Long, length: Int): UnsafeRow = {
    val bytes = new Array[Byte](length)
    Platform.putLong(bytes, Platform.BYTE_ARRAY_OFFSET + 8L, number)
    val unsafeRow = new UnsafeRow(1)
    unsafeRow.pointTo(bytes, bytes.length)
    unsafeRow
  }
}
