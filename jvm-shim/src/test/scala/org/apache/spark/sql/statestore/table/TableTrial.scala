package org.apache.spark.sql.statestore.table

import java.util.SplittableRandom

import scala.collection.mutable

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.unsafe.Platform

/**
 * Does to a table what may be done to one, in random order, and compares it with a map: puts, adds and
 * removes; commits, rollbacks and compactions; scans that are open meanwhile. Rows have lengths that
 * fill pages in every way, also larger ones than a page.
 *
 * @param keys  so many different ones
 * @param largest  rows of that many bytes come now and then
 * @param heap  what tables may have of the heap meanwhile
 */
class TableTrial(seed: Long, keys: Int, largest: Int, hasLists: Boolean, heap: Long) {
  private val random = new SplittableRandom(seed)
  private val table = new StateTable(1, 1, hasLists)
  private var content = Map.empty[Int, Vector[Long]]
  private var committed = List((table.mark(), content))
  private val scans = mutable.ArrayBuffer.empty[(Iterator[(Int, Long)], mutable.Set[(Int, Long)])]

  /** Returns how many bytes of files there are at the end. */
  def run(steps: Int): Long = try {
    TableMemory.limitHeap(heap)
    (1 to steps).foreach(step)
    // Open scans alone have what they show by now.
    compact()
    compact()
    System.gc()
    scans.foreach(finish)
    check()
    TableMemory.mappedBytes
  } finally {
    TableMemory.limitHeap(TableMemory.defaultLimit)
  }

  private def step(number: Int): Unit = random.nextInt(1000) match {
    case n if n < 600 => put()
    case n if n < 700 => remove()
    case n if n < 800 => if (hasLists) add() else get()
    case n if n < 970 => get()
    case n if n < 978 => commit()
    case n if n < 982 => rollBack()
    case n if n < 984 => compact()
    case 984 => if (table.adoptCompaction()) committed = List((table.mark(), content)) else compactMeanwhile()
    case n if n < 990 => if (scans.size < 4) open() else finish(scans.remove(random.nextInt(scans.size)))
    case n if n < 992 => check()
    case _ => scans.foreach { case (rows, left) => take(rows, left) }
  }

  private def put(): Unit = {
    val key = random.nextInt(keys)
    val value = newValue()
    table.put(keyRow(key), valueRow(value))
    content += key -> Vector(value)
  }

  private def add(): Unit = {
    val key = random.nextInt(keys)
    val value = newValue()
    table.add(keyRow(key), valueRow(value))
    content += key -> (content.getOrElse(key, Vector.empty) :+ value)
  }

  private def remove(): Unit = {
    val key = random.nextInt(keys)
    table.remove(keyRow(key))
    content -= key
  }

  private def get(): Unit = {
    val key = random.nextInt(keys)
    val found = Option(table.get(keyRow(key))).map(valueOf)
    require(found == content.get(key).map(_.head), s"key $key has $found and not ${content.get(key)}")
    if (hasLists) {
      val all = table.valuesOf(keyRow(key)).map(valueOf).toVector
      require(all == content.getOrElse(key, Vector.empty), s"key $key has the values $all")
    }
  }

  private def commit(): Unit = committed = ((table.mark(), content) :: committed).take(3)

  private def rollBack(): Unit = {
    // Scans belong to what is undone.
    scans.clear()
    committed = committed.drop(random.nextInt(committed.size))
    table.rollbackTo(committed.head._1)
    content = committed.head._2
  }

  private def compact(): Unit = {
    table.compact()
    committed = List((table.mark(), content))
  }

  // Steps go on while another thread copies.
  private def compactMeanwhile(): Unit = new Thread(table.beginCompaction()).start()

  private def open(): Unit = {
    val rows = table.iterator(everyValue = true).map(pair => (keyOf(pair.key), valueOf(pair.value)))
    scans += ((rows, mutable.Set.from(content.iterator.flatMap { case (key, values) => values.map((key, _)) })))
  }

  private def take(rows: Iterator[(Int, Long)], left: mutable.Set[(Int, Long)]): Unit =
    if (rows.hasNext) {
      val row = rows.next()
      require(left.remove(row), s"a scan shows $row, which was not there when it began")
    }

  private def finish(scan: (Iterator[(Int, Long)], mutable.Set[(Int, Long)])): Unit = {
    while (scan._1.hasNext) take(scan._1, scan._2)
    require(scan._2.isEmpty, s"a scan lacks ${scan._2.size} rows")
  }

  private def check(): Unit = {
    require(table.numKeys == content.size, s"${table.numKeys} keys and not ${content.size}")
    require(table.numValues == content.valuesIterator.map(_.size).sum)
    open()
    finish(scans.remove(scans.size - 1))
  }

  // A value's number says what is in it.
  private def newValue(): Long = random.nextLong() & ~0xffL | random.nextInt(256)

  private def lengthOf(value: Long): Int = (value & 0xff).toInt match {
    case 0 => largest
    case n if n < 8 => math.min(largest, 4096 * n)
    case n => 16 + (n & 31) * 8
  }

  private def keyRow(key: Int): UnsafeRow = row(16 + 8 * (key % 4), key.toLong)

  private def valueRow(value: Long): UnsafeRow = row(lengthOf(value), value)

  private def row(length: Int, number: Long): UnsafeRow = {
    val bytes = new Array[Byte](length)
    var i = 8
    while (i < length) {
      Platform.putLong(bytes, Platform.BYTE_ARRAY_OFFSET + i.toLong, number + i - 8)
      i += 8
    }
    val made = new UnsafeRow(1)
    made.pointTo(bytes, length)
    made
  }

  private def keyOf(row: UnsafeRow): Int = {
    val key = row.getLong(0).toInt
    require(row == keyRow(key), s"the bytes of key $key are others")
    key
  }

  private def valueOf(row: UnsafeRow): Long = {
    val value = row.getLong(0)
    require(row == valueRow(value), s"the bytes of value $value are others")
    value
  }
}
