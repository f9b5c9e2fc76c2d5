package org.apache.spark.sql.statestore.table

import java.util.concurrent.atomic.AtomicReference

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.types.StructType
import org.apache.spark.unsafe.Platform

/**
 * Test of tables that several threads read at the same time: each must get the rows that it asked for, by key, by
 * prefix and by range.
 *
 * @param keys     number of keys, in groups of four that share a prefix
 * @param readers  number of threads
 */
class ReadersTrial(keys: Int, readers: Int) {
  private val failure = new AtomicReference[Throwable]

  /** Reads from each kind of table so many times in each thread; throws what the first thread that fails throws. */
  def run(rounds: Int): Unit = {
    val schema = new StructType().add("prefix", "long").add("key", "long")
    val prefixed = new StateTable(2, 1, prefix = Some(new PrefixProjection(schema, 1)))
    val ordered = new StateTable(2, 1, order = Some(new ColumnOrder(schema, Array(0), scansPrefixes = true)))
    val timed = new StateTable(2, 1, hasLists = true, order = Some(new TimestampLastOrder(schema)))
    Seq(prefixed, ordered, timed).foreach { table =>
      (0 until keys).foreach(key => table.put(row(prefixOf(key), key.toLong), row(-key.toLong)))
      val threads = (0 until readers).map(reader => new Thread(() => guarded(read(table, reader, rounds))))
      threads.foreach(_.start())
      threads.foreach(_.join())
      table.discard()
      if (failure.get != null) throw failure.get
    }
  }

  private def prefixOf(key: Int): Long = (key / 4).toLong

  private def guarded(body: => Unit): Unit = try body catch { case e: Throwable => failure.compareAndSet(null, e) }

  private def read(table: StateTable, reader: Int, rounds: Int): Unit = {
    val into = table.newRow()
    (0 until rounds).foreach { round =>
      val key = (round * 31 + reader * 7) % keys
      val value = table.get(row(prefixOf(key), key.toLong), into)
      val rows = table.prefixScan(row(prefixOf(key))).map(pair => (pair.key.getLong(1), pair.value.getLong(0))).toSeq
      require(rows.map(_._1).toSet == (key / 4 * 4L until key / 4 * 4L + 4).toSet, s"the prefix of key $key has $rows")
      require(rows.forall { case (k, v) => v == -k }, s"the prefix of key $key has $rows")
      require(value.getLong(0) == -key, s"key $key has ${value.getLong(0)}")
      if (table.isOrdered) {
        val bound = Some(row(prefixOf(key), key.toLong))
        val first = table.rangeScan(bound, None).next().key
        require(first.getLong(0) == prefixOf(key), s"a range from key $key starts at ${first.getLong(1)}")
      }
    }
  }

  private def row(columns: Long*): UnsafeRow = {
    val bytes = new Array[Byte](8 + 8 * columns.length)
    columns.indices.foreach(i => Platform.putLong(bytes, Platform.BYTE_ARRAY_OFFSET + 8L + 8L * i, columns(i)))
    val unsafeRow = new UnsafeRow(columns.length)
    unsafeRow.pointTo(bytes, bytes.length)
    unsafeRow
  }
}
