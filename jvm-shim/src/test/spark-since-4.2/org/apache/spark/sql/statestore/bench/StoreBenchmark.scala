package org.apache.spark.sql.statestore.bench

import java.util.{Map => JMap}

import com.fasterxml.jackson.databind.ObjectMapper
import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.statestore.BackgroundWork
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.StructType

/**
 * Benchmark of the batches of one store, of any provider. Rows are built before the clock starts, and the
 * store's results are compared with what was put, so that no store is fast by being wrong. Times are in
 * nanoseconds.
 */
class StoreBenchmark(
    providerClass: String, checkpointRoot: String, confs: JMap[String, String], partition: Int) {
  import BenchmarkRows._
  import StoreBenchmark._

  private var provider = open()
  private var version = 0L
  private var checkpointId: Option[String] = None
  private var measured: StateStoreMetrics = _
  private var loaded: StateStoreMetrics = _
  private var batches = 0
  private var changing: StateStore = _

  // For each key the number of the batch that put it last.
  private var newest = Array.empty[Int]

  /** The first batch: puts so many new keys. */
  def fill(keys: Int): Long = fill(keys, keys, snapshot = false)

  /** Puts so many new keys, in commits of at most so many; every commit is a whole snapshot, or none is. */
  def fill(keys: Int, most: Int, snapshot: Boolean): Long = {
    newest = java.util.Arrays.copyOf(newest, newest.length + keys)
    val rows = new BenchmarkRows
    val start = System.nanoTime()
    var key = newest.length - keys
    while (key < newest.length) {
      val store = provider.getStore(version, checkpointId, forceSnapshotOnCommit = snapshot)
      val end = math.min(newest.length.toLong, key.toLong + most).toInt
      while (key < end) {
        store.put(rows.key(key), rows.value(key, 0L))
        key += 1
      }
      store.commit()
      finished(store)
    }
    System.nanoTime() - start
  }

  /** Opens the newest version, reads and writes random keys of those that exist, and commits. */
  def batch(operations: Int, seed: Long): Long = {
    batches += 1
    val random = new java.util.SplittableRandom(seed)
    val rows = new BenchmarkRows
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
    var batchSum = 0L
    i = 0
    while (i < operations) {
      batchSum += store.get(keys(i)).getLong(BatchColumn)
      store.put(keys(i), values(i))
      i += 1
    }
    store.commit()
    val nanos = System.nanoTime() - start
    finished(store)
    require(batchSum == expected, s"$providerClass gave other values than were put")
    nanos
  }

  /** Opens the newest version and puts different keys of those that exist; `commit` is to follow. */
  def change(count: Int, seed: Long): Long = {
    batches += 1
    val rows = new BenchmarkRows
    val keys = new Array[UnsafeRow](count)
    val values = new Array[UnsafeRow](count)
    // The step has no divisor in common with a number of keys that the step's prime does not divide.
    var key = Math.floorMod(seed, newest.length)
    var i = 0
    while (i < count) {
      keys(i) = rows.key(key).copy()
      values(i) = rows.value(key, batches).copy()
      newest(key) = batches
      key = ((key.toLong + Step) % newest.length).toInt
      i += 1
    }
    val start = System.nanoTime()
    changing = provider.getStore(version, checkpointId)
    i = 0
    while (i < count) {
      changing.put(keys(i), values(i))
      i += 1
    }
    System.nanoTime() - start
  }

  /** Commits what was changed. */
  def commit(): Long = {
    val start = System.nanoTime()
    changing.commit()
    val nanos = System.nanoTime() - start
    finished(changing)
    nanos
  }

  /** Times one maintenance, as Spark's maintenance thread runs it. */
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
      verify(store)
      store.abort()
      nanos
    } finally {
      fresh.close()
    }
  }

  /** Loads the newest version in the place of what is in memory. */
  def reload(): Long = {
    provider.close()
    provider = open()
    val start = System.nanoTime()
    val store = provider.getStore(version, checkpointId)
    val nanos = System.nanoTime() - start
    verify(store)
    store.abort()
    loaded = store.metrics
    nanos
  }

  /** The metrics of the last commit, as JSON. */
  def metrics: String = asJson(measured)

  /** The metrics of the last reload, as JSON. */
  def loadMetrics: String = asJson(loaded)

  private def asJson(metrics: StateStoreMetrics): String = {
    val node = mapper.createObjectNode()
    provider.supportedCustomMetrics.foreach(metric => node.put(metric.name, 0L))
    metrics.customMetrics.foreach { case (metric, value) => node.put(metric.name, value) }
    node.put("numKeys", metrics.numKeys).put("memoryUsedBytes", metrics.memoryUsedBytes)
    mapper.writeValueAsString(node)
  }

  /** Waits for what our provider does in the background, so that it does not disturb another's batch. */
  def settle(): Unit = BackgroundWork.await()

  def close(): Unit = provider.close()

  private def verify(store: StateStore): Unit = {
    val rows = new BenchmarkRows
    val random = new java.util.SplittableRandom(version)
    (1 to math.min(1000, newest.length)).foreach { _ =>
      val key = random.nextInt(newest.length)
      require(store.get(rows.key(key)).getLong(BatchColumn) == newest(key),
        s"$providerClass loaded other values than were committed")
    }
  }

  private def finished(store: StateStore): Unit = {
    version += 1
    measured = store.metrics
    checkpointId = store.getStateStoreCheckpointInfo().stateStoreCkptId
  }

  private def open(): StateStoreProvider =
    openProvider(providerClass, checkpointRoot, partition, confs, NoPrefixKeyStateEncoderSpec(KeySchema),
      multiple = false)
}

object StoreBenchmark {
  private val mapper = new ObjectMapper
  private final val Step = 7368787L

  private[bench] def openProvider(
      providerClass: String,
      checkpointRoot: String,
      partition: Int,
      confs: JMap[String, String],
      spec: KeyStateEncoderSpec,
      multiple: Boolean,
      keySchema: StructType = BenchmarkRows.KeySchema,
      valueSchema: StructType = BenchmarkRows.ValueSchema): StateStoreProvider = {
    val sqlConf = new SQLConf
    val hadoopConf = new Configuration
    hadoopConf.setClassLoader(getClass.getClassLoader)
    confs.forEach { (name, value) =>
      if (name.startsWith("fs.")) hadoopConf.set(name, value) else sqlConf.setConfString(name, value)
    }
    hadoopConf.set("sql.streaming.runId", java.util.UUID.randomUUID.toString)
    val created = StateStoreProvider.create(providerClass)
    created.init(StateStoreId(checkpointRoot, 0L, partition), keySchema, valueSchema, spec,
      useColumnFamilies = multiple, new StateStoreConf(sqlConf), hadoopConf, multiple, None)
    created
  }
}
