package org.apache.spark.sql.statestore

import java.util.{Map => JMap}
import java.util.concurrent.CyclicBarrier

import com.fasterxml.jackson.databind.ObjectMapper
import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.catalyst.expressions.{SpecificInternalRow, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types._

/**
 * One store of a benchmark, of any provider: filled once, then timed batch by batch. A key is two
 * longs, a value three. Rows are made before the clock starts, and what the store gives back is
 * compared with what was put, so that no store is fast by being wrong. Times are in nanoseconds.
 */
class StoreBenchmark(providerClass: String, checkpointRoot: String, confs: JMap[String, String]) {
  import StoreBenchmark._

  private val provider = open()
  private var version = 0L
  private var checkpointId: Option[String] = None
  private var measured: StateStoreMetrics = _
  private var batches = 0L

  // For each key the number of the batch that put it last.
  private var newest = Array.empty[Long]

  /** The first batch: puts so many new keys. */
  def fill(keys: Int): Long = {
    newest = new Array[Long](keys)
    val rows = new RowMaker
    val start = System.nanoTime()
    val store = provider.getStore(version, checkpointId)
    var key = 0
    while (key < keys) {
      store.put(rows.key(key), rows.value(key, 0L))
      key += 1
    }
    store.commit()
    val nanos = System.nanoTime() - start
    finished(store)
    nanos
  }

  /** Opens the newest version, reads and writes random keys of those that exist, and commits. */
  def batch(operations: Int, seed: Long): Long = {
    batches += 1
    val random = new java.util.SplittableRandom(seed)
    val rows = new RowMaker
    val keys = new Array[UnsafeRow](operations)
    val values = new Array[UnsafeRow](operations)
    var expected = 0L
    var i = 0
    while (i < operations) {
      val key = random.nextInt(newest.length)
      keys(i) = rows.key(key).copy()
      values(i) = rows.value(key, batches).copy()
      expected += newest(key)
      newest(key) = batches
      i += 1
    }

    val start = System.nanoTime()
    val store = provider.getStore(version, checkpointId)
    var seen = 0L
    i = 0
    while (i < operations) {
      seen += store.get(keys(i)).getLong(BatchColumn)
      store.put(keys(i), values(i))
      i += 1
    }
    store.commit()
    val nanos = System.nanoTime() - start
    finished(store)
    require(seen == expected, s"$providerClass gave other values than were put")
    nanos
  }

  /** What Spark does on a timer. */
  def maintenance(): Long = {
    val start = System.nanoTime()
    provider.doMaintenance()
    System.nanoTime() - start
  }

  /** Loads the newest version into an instance of its own, as an executor that never had it. */
  def coldLoad(): Long = {
    val fresh = open()
    try {
      val start = System.nanoTime()
      val store = fresh.getStore(version, checkpointId)
      val nanos = System.nanoTime() - start
      val rows = new RowMaker
      val random = new java.util.SplittableRandom(version)
      (1 to 1000).foreach { _ =>
        val key = random.nextInt(newest.length)
        require(store.get(rows.key(key)).getLong(BatchColumn) == newest(key),
          s"$providerClass loaded other values than were committed")
      }
      store.abort()
      nanos
    } finally {
      fresh.close()
    }
  }

  /** The metrics of the last commit, as JSON. */
  def metrics: String = {
    val node = mapper.createObjectNode()
    measured.customMetrics.foreach { case (metric, value) => node.put(metric.name, value) }
    node.put("numKeys", measured.numKeys).put("memoryUsedBytes", measured.memoryUsedBytes)
    mapper.writeValueAsString(node)
  }

  def close(): Unit = provider.close()

  private def finished(store: StateStore): Unit = {
    version += 1
    measured = store.metrics
    checkpointId = store.getStateStoreCheckpointInfo().stateStoreCkptId
  }

  private def open(): StateStoreProvider = {
    val sqlConf = new SQLConf
    confs.forEach((name, value) => sqlConf.setConfString(name, value))
    val hadoopConf = new Configuration
    val runId = java.util.UUID.randomUUID
    hadoopConf.set("sql.streaming.runId", runId.toString)
    val created = StateStoreProvider.create(providerClass)
    created.init(StateStoreId(checkpointRoot, 0L, 0), KeySchema, ValueSchema,
      NoPrefixKeyStateEncoderSpec(KeySchema), useColumnFamilies = false, new StateStoreConf(sqlConf), hadoopConf)
    created
  }
}

object StoreBenchmark {
  private val mapper = new ObjectMapper
  private val KeySchema = StructType.fromDDL("a bigint, b bigint")
  private val ValueSchema = StructType.fromDDL("key bigint, batch bigint, noise bigint")
  private val BatchColumn = 1

  /** Makes rows as operators do, in buffers that the next row reuses. */
  private final class RowMaker {
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
      valueFields.setLong(1, batch)
      valueFields.setLong(2, mix(number.toLong ^ batch << 32))
      projectValue(valueFields)
    }
  }

  // A bijection (the finalizer of splitmix64): distinct numbers give distinct, incompressible ones.
  private def mix(number: Long): Long = {
    val a = (number ^ number >>> 30) * 0xbf58476d1ce4e5b9L
    val b = (a ^ a >>> 27) * 0x94d049bb133111ebL
    b ^ b >>> 31
  }

  /** Waits for what our provider does in the background, so that it does not disturb another's batch. */
  def settle(): Unit = {
    val threads = math.max(1, Runtime.getRuntime.availableProcessors() / 4)
    val barrier = new CyclicBarrier(threads + 1)
    (1 to threads).foreach(_ => Background.submit(() => barrier.await()))
    barrier.await()
  }
}
