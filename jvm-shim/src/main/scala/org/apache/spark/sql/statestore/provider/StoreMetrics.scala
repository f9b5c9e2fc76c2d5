package org.apache.spark.sql.statestore.provider

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.backend.{Backend, CommitCost, CommitReply, StoredVersion}
import org.apache.spark.sql.statestore.compat.SizeMetric
import org.apache.spark.sql.statestore.table.TableMemory

/** The custom metrics of the provider: sums over the partitions of an operator, except for a `MaximumMetric`. */
private[statestore] object StoreMetrics {
  val LoadTime = StateStoreCustomSumMetric(
    "checkpointLoadTimeUs", "state load: time, in microseconds")
  val LoadBytes = SizeMetric(
    "checkpointLoadBytes", "state load: bytes read from storage", isSnapshot = false)
  val EncodeTime = StateStoreCustomSumMetric(
    "checkpointCommitEncodeTimeUs", "state commit: collecting the changes, in microseconds")
  val SendTime = StateStoreCustomSumMetric(
    "checkpointCommitSendTimeUs", "state commit: handing the changes to the backend, in microseconds")
  val StoreTime = StateStoreCustomSumMetric(
    "checkpointCommitStoreTimeUs", "state commit: writing and publishing, in microseconds")
  val BytesWritten = SizeMetric(
    "checkpointBytesWritten", "state commit: bytes written to storage", isSnapshot = false)
  val ObjectsWritten = StateStoreCustomSumMetric(
    "checkpointObjectsWritten", "state commit: objects written to storage")
  val ChainLength = MaximumMetric(
    "checkpointMaxChainLength", "streams that a load of this version reads, maximum over partitions")
  val SnapshotAge = MaximumMetric(
    "checkpointMaxSnapshotAge", "versions since the last full snapshot, maximum over partitions")
  val MaxRows = MaximumMetric(
    "stateTableMaxRows", "rows of state, maximum over partitions")
  val FullSnapshots = StateStoreCustomSumMetric(
    "checkpointFullSnapshots", "commits that wrote the whole state")
  val Compactions = StateStoreCustomSumMetric(
    "stateTableCompactions", "compactions of the in-memory log")
  val RoundTrips = StateStoreCustomSumMetric(
    "backendRoundTrips", "requests to the Python backend")
  val Restarts = StateStoreCustomSumMetric(
    "backendRestarts", "restarts of the Python backend")
  val StorageRetries = StateStoreCustomSumMetric(
    "storageRetries", "retries of storage calls after a transient failure")
  val StreamsRepaired = StateStoreCustomSumMetric(
    "streamsRepaired", "state load: damaged or missing streams that were replaced by others with the same state")
  val LocalCopyLoads = StateStoreCustomSumMetric(
    "localCopyLoads", "state load: loads whose full snapshot came from a local copy")
  val BackendMemory = SizeMetric(
    "backendMemoryBytes", "resident memory of the Python backends", isSnapshot = true)

  val MappedBytes = SizeMetric(
    "stateTableMappedBytes", "state in mapped files of the executors, beyond maxHeapBytes", isSnapshot = true)

  val supported: Seq[StateStoreCustomMetric] = Seq(
    LoadTime, LoadBytes, EncodeTime, SendTime, StoreTime, BytesWritten, ObjectsWritten, ChainLength,
    SnapshotAge, MaxRows, FullSnapshots, Compactions, RoundTrips, Restarts, StorageRetries,
    StreamsRepaired, LocalCopyLoads, BackendMemory, MappedBytes)

  /**
   * Returns the figures of a store at a version that are not 0.
   *
   * @param rows    of the store
   * @param stored  its newest version that is durable
   * @param first   whether it reports the figures of its executor, too
   */
  def values(
      counters: StoreCounters, rows: Long, stored: Option[StoredVersion], version: Long, backend: Backend,
      first: Boolean): Map[StateStoreCustomMetric, Long] = {
    val cost = counters.cost
    val figures = Map.newBuilder[StateStoreCustomMetric, Long]
    // Spark sends each figure to the driver with the task's result, and a missing one counts as 0.
    def add(metric: StateStoreCustomMetric, value: Long): Unit = if (value != 0L) figures += metric -> value
    add(LoadTime, micros(counters.loadNanos))
    add(LoadBytes, counters.loadBytes)
    add(LocalCopyLoads, counters.localCopies)
    add(EncodeTime, micros(cost.encodeNanos))
    add(SendTime, micros(cost.sendNanos))
    add(StoreTime, micros(cost.storeNanos))
    add(BytesWritten, cost.bytes)
    add(ObjectsWritten, cost.objects)
    add(ChainLength, stored.fold(0L)(_.chainLength.toLong))
    add(SnapshotAge, stored.fold(0L)(version - _.baseVersion))
    add(MaxRows, rows)
    add(FullSnapshots, if (counters.full) 1L else 0L)
    add(Compactions, counters.compactions)
    add(RoundTrips, counters.roundTrips)
    add(Restarts, backend.restarts.take())
    add(StorageRetries, backend.storageRetries.take())
    add(StreamsRepaired, backend.streamsRepaired.take())
    if (first) {
      add(BackendMemory, backend.memoryBytes)
      add(MappedBytes, TableMemory.mappedBytes)
    }
    figures.result()
  }

  // Figures of a whole executor enter an operator's sum once per batch and executor, not per partition.
  private val reported = new java.util.concurrent.ConcurrentHashMap[String, java.lang.Long]

  /** True if this is the first call of this JVM for an operator and version. */
  def isFirst(operator: String, version: Long): Boolean = {
    var claimed = false
    reported.compute(operator, (_, last) => {
      if (last == null || last < version) {
        claimed = true
        version
      } else {
        last
      }
    })
    claimed
  }

  /** Removes an operator of which a store is closed; another open store of it may then report once more. */
  def forget(operator: String): Unit = reported.remove(operator)

  private val open = new java.util.concurrent.atomic.LongAdder

  /** Number of stores that this JVM has open. */
  def openStores: Long = open.sum

  def opened(): Unit = {
    open.increment()
    HeapWatch.start()
    MemoryPressure.start()
  }

  def closed(): Unit = open.decrement()

  private def micros(nanos: Long): Long = nanos / 1000
}

/** Counters of one store between its load and its commit. */
private[statestore] final class StoreCounters {
  var loadNanos = 0L
  var loadBytes = 0L
  var localCopies = 0L
  var compactions = 0L
  var roundTrips = 0L
  var full = false
  var cost: CommitCost = new CommitCost(0L, 0L, 0L, 0L, 0L)

  /** Takes the figures of the commit of a version. */
  def take(reply: CommitReply, version: Long): Unit = {
    cost = reply.cost
    full = reply.stored.baseVersion == version
  }
}
