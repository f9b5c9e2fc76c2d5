package org.apache.spark.sql.statestore.bench

import java.util.{Map => JMap}

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._

/**
 * Benchmark of single operations on a store of some thousand rows, of any provider. Each operation opens
 * the same committed version, only the operation is timed, its result is checked, and its changes are
 * aborted. Times are in nanoseconds.
 *
 * @param kind  `plain`, `lists` of values, keys with a `prefix`, or a `range`
 */
class RowBenchmark(
    providerClass: String, checkpointRoot: String, confs: JMap[String, String], kind: String, count: Int) {
  import BenchmarkRows._
  import RowBenchmark._

  private val spec = kind match {
    case "prefix" => PrefixKeyScanStateEncoderSpec(KeySchema, 1)
    case "range" => RangeKeyScanStateEncoderSpec(KeySchema, Seq(0))
    case _ => NoPrefixKeyStateEncoderSpec(KeySchema)
  }
  private val provider = StoreBenchmark.openProvider(
    providerClass, checkpointRoot, 0, confs, spec, multiple = kind == "lists")
  private val maker = new BenchmarkRows

  // In an order that is no store's own, and others that are not in the store.
  private val order = new scala.util.Random(count).shuffle((0 until count).toVector).toArray
  private val present = order.map(rowKey)
  private val absent = order.map(number => rowKey(number + count))
  private val values = order.map(number => maker.value(number, 1L).copy())
  private val otherKey = rowKey(2 * count)
  private val otherValue = maker.value(0, 2L).copy()
  private val numbers = order.map(_.toLong).sum
  private val (version, checkpointId) = fill()

  /** Does an operation with every row, or so often that it meets every row. */
  def time(operation: String): Long = {
    val store = provider.getStore(version, checkpointId)
    try {
      val (run, check) = prepare(operation, store)
      // Some stores open a file with the first write, which is no row's own cost.
      store.put(otherKey, otherValue)
      val start = System.nanoTime()
      val result = run()
      val nanos = System.nanoTime() - start
      check(result)
      nanos
    } finally {
      store.abort()
    }
  }

  def close(): Unit = provider.close()

  // The timed operations, and the check of their results.
  private def prepare(operation: String, store: StateStore): (() => Long, Long => Unit) = operation match {
    case "put new" => (() => put(store, absent), _ => requireAll(store, absent))
    case "put overwrite" => (() => put(store, present), _ => requireAll(store, present))
    case "get hit" => (() => getHits(store), requireNumbers)
    case "get miss" => (() => getMisses(store), requireCount)
    case "remove" => (() => remove(store), _ => requireNone(store))
    case "scan" => (() => sum(store.iterator()), requireNumbers)
    case "evict" => (() => evict(store), removed => { requireCount(removed); requireNone(store) })
    case "merge" => (() => merge(store, count / ValuesPerKey), _ => requireMerged(store))
    case "prefix scan" =>
      val prefixes = (0 until count / RowsPerScan).map(number => UnsafeRows.oneColumn(prefixOf(number))).toArray
      (() => prefixes.map(prefix => sum(store.prefixScan(prefix))).sum, requireNumbers)
    case "range scan" =>
      val bounds = (0 to count / RowsPerScan).map(n => Option(rowKey(n * RowsPerScan))).toArray
      (() => bounds.indices.tail.map(i => sum(store.rangeScan(bounds(i - 1), bounds(i)))).sum, requireNumbers)
  }

  private def rowKey(number: Int): UnsafeRow =
    (if (kind == "prefix") UnsafeRows.twoColumns(prefixOf(number / RowsPerScan), number) else maker.key(number)).copy()

  private def prefixOf(number: Int): Long = mix(number.toLong)

  private def fill(): (Long, Option[String]) = {
    val store = provider.getStore(0L)
    if (kind == "lists") merge(store, count / ValuesPerKey) else put(store, present)
    store.commit()
    (1L, store.getStateStoreCheckpointInfo().stateStoreCkptId)
  }

  private def put(store: StateStore, keys: Array[UnsafeRow]): Long = {
    var i = 0
    while (i < keys.length) {
      store.put(keys(i), values(i))
      i += 1
    }
    i
  }

  private def getHits(store: StateStore): Long = {
    var sum = 0L
    var i = 0
    while (i < present.length) {
      sum += store.get(present(i)).getLong(0)
      i += 1
    }
    sum
  }

  private def getMisses(store: StateStore): Long = {
    var missing = 0L
    var i = 0
    while (i < absent.length) {
      if (store.get(absent(i)) == null) missing += 1
      i += 1
    }
    missing
  }

  private def remove(store: StateStore): Long = {
    var i = 0
    while (i < present.length) {
      store.remove(present(i))
      i += 1
    }
    i
  }

  private def sum(rows: StateStoreIterator[UnsafeRowPair]): Long = {
    var sum = 0L
    while (rows.hasNext) sum += rows.next().value.getLong(0)
    rows.close()
    sum
  }

  // As operators do behind a watermark: all rows are looked at, those that are old removed.
  private def evict(store: StateStore): Long = {
    var removed = 0L
    val rows = store.iterator()
    while (rows.hasNext) {
      val row = rows.next()
      if (row.value.getLong(BatchColumn) <= 1L) {
        store.remove(row.key)
        removed += 1
      }
    }
    rows.close()
    removed
  }

  // The first value of a key replaces what it had, and nine are added.
  private def merge(store: StateStore, keys: Int): Long = {
    var i = 0
    while (i < keys) {
      store.put(present(i), values(i * ValuesPerKey))
      var j = 1
      while (j < ValuesPerKey) {
        store.merge(present(i), values(i * ValuesPerKey + j))
        j += 1
      }
      i += 1
    }
    i
  }

  private def requireNumbers(result: Long): Unit = demand(result == numbers)

  private def requireCount(result: Long): Unit = demand(result == count)

  private def requireAll(store: StateStore, keys: Array[UnsafeRow]): Unit =
    Sampled.foreach(i => demand(store.get(keys(i % count)) == values(i % count)))

  private def requireNone(store: StateStore): Unit =
    Sampled.foreach(i => demand(store.get(present(i % count)) == null))

  private def requireMerged(store: StateStore): Unit = Sampled.foreach { number =>
    val i = number % (count / ValuesPerKey)
    val mergedValues = store.valuesIterator(present(i)).map(_.getLong(0)).toSeq
    demand(mergedValues == (0 until ValuesPerKey).map(j => values(i * ValuesPerKey + j).getLong(0)))
  }

  private def demand(holds: Boolean): Unit =
    require(holds, s"$providerClass does not give what was put")
}

private[bench] object RowBenchmark {
  private final val ValuesPerKey = 10
  private final val RowsPerScan = 100
  private val Sampled = 0 until 10000 by 97
}

/** Rows of one or two longs. */
private[bench] object UnsafeRows {
  import org.apache.spark.sql.catalyst.InternalRow
  import org.apache.spark.sql.catalyst.expressions.UnsafeProjection
  import org.apache.spark.sql.types.{LongType, DataType}

  private val projectOne = UnsafeProjection.create(Array[DataType](LongType))
  private val projectTwo = UnsafeProjection.create(Array[DataType](LongType, LongType))

  def oneColumn(first: Long): UnsafeRow = projectOne(InternalRow(first)).copy()

  def twoColumns(first: Long, second: Long): UnsafeRow = projectTwo(InternalRow(first, second)).copy()
}
