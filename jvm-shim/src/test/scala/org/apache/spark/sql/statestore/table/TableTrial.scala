package org.apache.spark.sql.statestore.table

import java.util.SplittableRandom

import scala.collection.mutable

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.statestore.arrow.RecordSelection
import org.apache.spark.sql.types.StructType
import org.apache.spark.unsafe.Platform

/**
 * Randomized test of a table against a map: puts, merges and removes; commits, rollbacks and compactions,
 * with scans open meanwhile, each with a lease on the table's memory, while pages are moved to files if the heap
 * limit is low. Slices of the log between any two commits have the net changes between them. Row lengths fill pages
 * in every way; some rows are larger than a page.
 *
 * @param keys      number of distinct keys
 * @param largest   length of the largest rows, in bytes
 * @param prefixes  number of prefixes of the keys, 0 for a table without prefix index
 * @param heap      heap limit of tables during the test, in bytes; if it is negative, another one after each commit, and pages are
 *                  moved at other times, too
 */
class TableTrial(seed: Long, keys: Int, largest: Int, hasLists: Boolean, prefixes: Int, heap: Long) {
  private val heapBefore = TableMemory.heapBytes
  private val random = new SplittableRandom(seed)
  private val slicing = new SplittableRandom(seed)
  private val keySchema =
    if (prefixes > 0) new StructType().add("prefix", "long").add("key", "long") else new StructType().add("key", "long")
  private val table = new StateTable(
    keySchema.length, 1, hasLists, if (prefixes > 0) Some(new PrefixProjection(keySchema, 1)) else None)
  private val view = table.newRow()
  private var content = Map.empty[Int, Vector[Long]]
  // In some batches no iterator is opened, so that their part of the log is rewritten; it then often is.
  private var isQuiet = false
  table.batch.mostGarbage = 4096L
  private var committed = List((table.snapshot(), content))
  private var mostMapped = 0L
  private val retiredMemory = new RetiredMemory
  // Rows of earlier calls of `get` with their values, as a string that was taken from a row refers to its bytes.
  private val earlierRows = mutable.ArrayBuffer.empty[(UnsafeRow, Long)]
  private val scans = mutable.ArrayBuffer.empty[(Iterator[(Int, Long)], mutable.Set[(Int, Long)])]

  /**
   * Runs so many steps; returns the most bytes of mapped files at a commit, those after the table was freed, and how often
   * a batch's part of the log was rewritten.
   */
  def run(steps: Int): Array[Long] = try {
    TableMemory.limitHeap(if (heap < 0) 0L else heap)
    (1 to steps).foreach(step)
    // Only the open scans read the old pages now: they must not be unmapped.
    compact()
    compact()
    System.gc()
    while (scans.nonEmpty) close(0, complete = true)
    check()
    retiredMemory.retire(table.takeMemory())
    earlierRows.foreach { case (row, value) => require(valueOf(row) == value) }
    require(TableMemory.heapBytes <= heapBefore, s"${TableMemory.heapBytes - heapBefore} bytes of heap were not freed")
    Array(mostMapped, TableMemory.mappedBytes, table.batch.rewrites)
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
    case 984 => if (table.adoptCompaction()) compacted() else compactMeanwhile()
    case n if n < 990 => if (scans.size < 4 && !isQuiet) open() else if (scans.nonEmpty) close(random.nextInt(scans.size), complete = true)
    case n if n < 992 =>
      if (!isQuiet) check()
      checkSlice()
      if (heap < 0) table.moveToFiles()
    case _ => scans.foreach { case (rows, unread) => take(rows, unread) }
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
    table.merge(keyRow(key), valueRow(value))
    content += key -> (content.getOrElse(key, Vector.empty) :+ value)
  }

  private def remove(): Unit = {
    val key = random.nextInt(keys)
    table.remove(keyRow(key))
    content -= key
  }

  private def get(): Unit = {
    val key = random.nextInt(keys)
    val row = table.get(keyRow(key), view)
    val value = Option(row).map(valueOf)
    // Rows in the heap stay valid, but would keep whole pages reachable.
    if (row != null && heap == 0L && row.getSizeInBytes < 1024) {
      val again = new UnsafeRow(1)
      again.pointTo(row.getBaseObject, row.getBaseOffset, row.getSizeInBytes)
      earlierRows += ((again, value.get))
    }
    require(value == content.get(key).map(_.head), s"key $key has $value and not ${content.get(key)}")
    if (hasLists && !isQuiet) {
      val all = table.valuesOf(keyRow(key)).map(valueOf).toVector
      require(all == content.getOrElse(key, Vector.empty), s"key $key has the values $all")
    }
    if (prefixes > 0 && !isQuiet && random.nextInt(16) == 0) scanPrefix(key % prefixes)
  }

  private def scanPrefix(prefix: Int): Unit = {
    val rows = table.prefixScan(row(16, prefix.toLong)).map(pair => (keyOf(pair.key), valueOf(pair.value))).toMap
    val expected = content.collect { case (key, values) if key % prefixes == prefix => (key, values.head) }
    require(rows == expected, s"the prefix $prefix has ${rows.size} keys and not ${expected.size}")
  }

  private def commit(): Unit = {
    committed = ((table.snapshot(), content) :: committed).take(3)
    mostMapped = math.max(mostMapped, TableMemory.mappedBytes)
    checkSlice()
    check()
    isQuiet = slicing.nextBoolean()
    if (heap < 0) TableMemory.limitHeap(TableTrial.Limits(random.nextInt(TableTrial.Limits.length)))
    table.useFreedHeap()
  }

  private def rollBack(): Unit = {
    // Scans are valid until a rollback.
    while (scans.nonEmpty) close(0, complete = false)
    committed = committed.drop(random.nextInt(committed.size))
    table.rollbackTo(committed.head._1)
    content = committed.head._2
  }

  private def compact(): Unit = {
    table.compact()
    compacted()
  }

  private def compacted(): Unit = {
    committed = List((table.snapshot(), content))
    retiredMemory.retire(table.takeReplacedMemory())
  }

  // The next steps run while another thread copies.
  private def compactMeanwhile(): Unit = new Thread(table.beginCompaction()).start()

  private def open(): Unit = {
    retiredMemory.acquire()
    val rows = table.iterator(everyValue = true).map(pair => (keyOf(pair.key), valueOf(pair.value)))
    scans += ((rows, mutable.Set.from(content.iterator.flatMap { case (key, values) => values.map((key, _)) })))
  }

  private def take(rows: Iterator[(Int, Long)], unread: mutable.Set[(Int, Long)]): Unit =
    if (rows.hasNext) {
      val row = rows.next()
      require(unread.remove(row), s"a scan shows $row, which was not there when it began")
    }

  private def close(number: Int, complete: Boolean): Unit = {
    val (rows, unread) = scans.remove(number)
    if (complete) {
      while (rows.hasNext) take(rows, unread)
      require(unread.isEmpty, s"a scan lacks ${unread.size} rows")
    }
    retiredMemory.release()
  }

  private def check(): Unit = {
    require(table.numKeys == content.size, s"${table.numKeys} keys and not ${content.size}")
    require(table.numValues == content.valuesIterator.map(_.size).sum)
    open()
    close(scans.size - 1, complete = true)
  }

  // What a run of several commits has, read at any later time.
  private def checkSlice(): Unit = {
    val (newer, expected) :: before = committed.drop(slicing.nextInt(committed.size)): @unchecked
    if (before.nonEmpty) {
      val (older, content) = before(slicing.nextInt(before.size))
      val tail = older.tail
      val scan = table.scan(newer.view, tail)
      val changes = new RecordSelection.Changes(_.existedAt(tail))
      var contentFromSlice = content
      val row = new UnsafeRow(1)
      while (scan.advance()) if (changes.selects(scan)) {
        row.pointTo(scan.page, scan.keyAddress, scan.keyLength)
        val key = keyOf(row)
        if (scan.kind == Record.Tombstone) {
          require(contentFromSlice.contains(key), s"a slice removes key $key, which did not exist")
          contentFromSlice -= key
        } else {
          row.pointTo(scan.page, scan.valueAddress, scan.valueLength)
          val value = valueOf(row)
          val before = if (scan.isMerge) contentFromSlice.getOrElse(key, Vector.empty) else Vector.empty
          contentFromSlice += key -> (before :+ value)
        }
      }
      require(contentFromSlice == expected, s"the log from $tail to ${newer.tail} has other changes")
    }
  }

  // The number of a value determines its bytes.
  private def newValue(): Long = random.nextLong() & ~0xffL | random.nextInt(256)

  private def lengthOf(value: Long): Int = (value & 0xff).toInt match {
    case 0 => largest
    case n if n < 8 => math.min(largest, 4096 * n)
    case n => 16 + (n & 31) * 8
  }

  private def keyRow(key: Int): UnsafeRow =
    if (prefixes == 0) row(16 + 8 * (key % 4), key.toLong) else prefixedRow(24 + 8 * (key % 4), key)

  private def prefixedRow(length: Int, key: Int): UnsafeRow = {
    val bytes = row(length, key.toLong - 8).getBytes
    Platform.putLong(bytes, Platform.BYTE_ARRAY_OFFSET + 8L, (key % prefixes).toLong)
    val unsafeRow = new UnsafeRow(2)
    unsafeRow.pointTo(bytes, length)
    unsafeRow
  }

  private def valueRow(value: Long): UnsafeRow = row(lengthOf(value), value)

  private def row(length: Int, number: Long): UnsafeRow = {
    val bytes = new Array[Byte](length)
    var i = 8
    while (i < length) {
      Platform.putLong(bytes, Platform.BYTE_ARRAY_OFFSET + i.toLong, number + i - 8)
      i += 8
    }
    val unsafeRow = new UnsafeRow(1)
    unsafeRow.pointTo(bytes, length)
    unsafeRow
  }

  private def keyOf(row: UnsafeRow): Int = {
    val key = Platform.getLong(row.getBaseObject, row.getBaseOffset + 8L * keySchema.length).toInt
    require(row == keyRow(key), s"the bytes of key $key are others")
    key
  }

  private def valueOf(row: UnsafeRow): Long = {
    val value = row.getLong(0)
    require(row == valueRow(value), s"the bytes of value $value are others")
    value
  }
}

/** Access to the memory of tables, for tests in Python. */
object TableTrial {
  // Below and above the size of the tables; at the first one nothing is in the heap but small blocks.
  private val Limits = Array(0L, 1L << 19, 1L << 21, 6L << 20, 1L << 40)

  def mappedBytes: Long = TableMemory.mappedBytes

  /**
   * Puts one of a few keys so many times in a batch, in a table of each kind; returns the largest size of a table. Rows
   * and iterators of the batch's beginning stay as they are, and a rollback restores them.
   */
  def overwrite(times: Int): Long = {
    val schema = new StructType().add("prefix", "long").add("key", "long")
    val tables = Seq(
      new StateTable(2, 1),
      new StateTable(2, 1, hasLists = true),
      new StateTable(2, 1, prefix = Some(new PrefixProjection(schema, 1))),
      new StateTable(2, 1, order = Some(new ColumnOrder(schema, Array(1), scansPrefixes = true))))
    tables.map(overwrite(_, times)).max
  }

  private def overwrite(table: StateTable, times: Int): Long = {
    def row(columns: Long*): UnsafeRow = {
      val bytes = new Array[Byte](8 + 8 * columns.length)
      columns.indices.foreach(i => Platform.putLong(bytes, Platform.BYTE_ARRAY_OFFSET + 8L + 8L * i, columns(i)))
      val unsafeRow = new UnsafeRow(columns.length)
      unsafeRow.pointTo(bytes, bytes.length)
      unsafeRow
    }
    def rows(pairs: Iterator[org.apache.spark.sql.execution.streaming.state.UnsafeRowPair]) =
      pairs.map(pair => (pair.key.getLong(1), pair.value.getLong(0))).toSeq.sorted
    val heapBefore = TableMemory.heapBytes
    (0L until 100L).foreach(key => table.put(row(0L, key), row(key)))
    val before = table.snapshot()
    val open = table.iterator()
    val earlyRow = table.get(row(0L, 7L), table.newRow())
    var most = 0L
    var early: UnsafeRow = null
    var late: UnsafeRow = null
    (0L until times.toLong).foreach { n =>
      table.put(row(0L, n % 3), row(n))
      // In the page of the rows before the batch, once that has its full size.
      if (n == 3000) early = table.get(row(0L, 0L), table.newRow())
      if (n == times / 2) late = table.get(row(0L, n % 3), table.newRow())
      // Before the first rewrite.
      if (n < 50_000L && n % 1000 == 0) table.remove(row(0L, 50L + n / 1000))
      most = math.max(most, table.memoryBytes)
    }
    require(early.getLong(0) == 3000L && late.getLong(0) == times / 2, "a row of the batch has changed")
    require(earlyRow.getLong(0) == 7L && rows(open) == (0L until 100L).map(key => (key, key)))
    val last = (times - 3L until times.toLong).map(n => (n % 3, n)).sorted
    require(rows(table.iterator()) == last ++ (3L until 50L).map(key => (key, key)), "rows differ")
    table.rollbackTo(before)
    require(rows(table.iterator()) == (0L until 100L).map(key => (key, key)), "rows differ after a rollback")
    require(TableMemory.heapBytes - heapBefore < (1L << 20) + most, "freed pages are counted")
    table.discard()
    most
  }

  private def row(number: Long): UnsafeRow = {
    val unsafeRow = new UnsafeRow(1)
    unsafeRow.pointTo(new Array[Byte](16), 16)
    unsafeRow.setLong(0, number)
    unsafeRow
  }

  /** Puts so many keys, then others that are rolled back; returns how many of the first are found with their values. */
  def keysBesideRolledBack(rows: Int, rolledBackRows: Int): Long = {
    val table = new StateTable(1, 1)
    (0L until rows.toLong).foreach(number => table.put(row(number), row(number)))
    val before = table.snapshot()
    (1L to rolledBackRows.toLong).foreach(number => table.put(row(-number), row(number)))
    table.rollbackTo(before)
    val view = table.newRow()
    val correctRows = (0L until rows.toLong).count { number =>
      val value = table.get(row(number), view)
      value != null && value.getLong(0) == number
    }
    table.discard()
    correctRows.toLong
  }

  /** Puts so many keys in order, all of them again, and removes every other one; returns how many a scan shows then. */
  def keysInOrder(rows: Int): Long = {
    val order = new ColumnOrder(new StructType().add("key", "long"), Array(0), scansPrefixes = true)
    val table = new StateTable(1, 1, order = Some(order))
    (0L to 1L).foreach(value => (0L until rows.toLong).foreach(number => table.put(row(number), row(value))))
    (0L until rows.toLong by 2L).foreach(number => table.remove(row(number)))
    val pairs = table.iterator().map(pair => (pair.key.getLong(0), pair.value.getLong(0))).toSeq
    require(pairs == (1L until rows.toLong by 2L).map(number => (number, 1L)), "rows are not in order, or not once")
    table.discard()
    pairs.length.toLong
  }

  /** Returns the heap that is accounted for a table of so many rows in key order, with its log in files. */
  def heapOfOrder(rows: Int): Long = {
    val schema = new StructType().add("key", "long")
    val before = TableMemory.heapBytes
    TableMemory.limitHeap(0L)
    val table = new StateTable(1, 1, order = Some(new ColumnOrder(schema, Array(0), scansPrefixes = true)))
    val random = new SplittableRandom(1L)
    try {
      (0 until rows).foreach(_ => table.put(row(random.nextLong()), row(0L)))
      val used = TableMemory.heapBytes - before
      table.discard()
      require(TableMemory.heapBytes == before, s"${TableMemory.heapBytes - before} bytes of heap were not freed")
      used
    } finally {
      resetHeapLimit()
    }
  }

  /** True if a table takes a row with a value of so many bytes. */
  def takes(valueBytes: Int): Boolean =
    scala.util.Try(Records.check(Record.PlainHeader, 16, 16, valueBytes)).isSuccess

  def resetHeapLimit(): Unit = TableMemory.limitHeap(TableMemory.defaultLimit)
}
