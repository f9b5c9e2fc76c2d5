package org.apache.spark.sql.statestore

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.io.{Backend, CommitCost}

/** The custom metrics of the provider; Spark adds each up over the partitions of an operator. */
private[statestore] object StoreMetrics {
  val LoadTime = StateStoreCustomSumMetric(
    "checkpointLoadTimeUs", "state load: time, in microseconds")
  val LoadBytes = StateStoreCustomSizeMetric(
    "checkpointLoadBytes", "state load: bytes read from storage", isSnapshot = false)
  val SealTime = StateStoreCustomSumMetric(
    "checkpointCommitSealTimeUs", "state commit: collecting the changes, in microseconds")
  val SendTime = StateStoreCustomSumMetric(
    "checkpointCommitSendTimeUs", "state commit: handing the changes to the backend, in microseconds")
  val StoreTime = StateStoreCustomSumMetric(
    "checkpointCommitStoreTimeUs", "state commit: writing and publishing, in microseconds")
  val BytesWritten = StateStoreCustomSizeMetric(
    "checkpointBytesWritten", "state commit: bytes written to storage", isSnapshot = false)
  val ObjectsWritten = StateStoreCustomSumMetric(
    "checkpointObjectsWritten", "state commit: objects written to storage")
  val ChainLength = StateStoreCustomSumMetric(
    "checkpointChainLength", "streams that a load of this version reads, over all partitions")
  val SnapshotAge = StateStoreCustomSumMetric(
    "checkpointSnapshotAge", "versions since the last full snapshot, over all partitions")
  val FullSnapshots = StateStoreCustomSumMetric(
    "checkpointFullSnapshots", "commits that wrote the whole state")
  val Compactions = StateStoreCustomSumMetric(
    "stateTableCompactions", "compactions of the in-memory log")
  val RoundTrips = StateStoreCustomSumMetric(
    "backendRoundTrips", "requests to the Python backend")
  val Restarts = StateStoreCustomSumMetric(
    "backendRestarts", "restarts of the Python backend")
  val StorageRetries = StateStoreCustomSumMetric(
    "storageRetries", "calls of storage that were made again after a passing failure")
  val BackendMemory = StateStoreCustomSizeMetric(
    "backendMemoryBytes", "resident memory of the Python backends", isSnapshot = true)

  val supported: Seq[StateStoreCustomMetric] = Seq(
    LoadTime, LoadBytes, SealTime, SendTime, StoreTime, BytesWritten, ObjectsWritten, ChainLength,
    SnapshotAge, FullSnapshots, Compactions, RoundTrips, Restarts, StorageRetries,
    BackendMemory)

  val supportedInstances: Seq[StateStoreInstanceMetric] = Seq(StateStoreSnapshotLastUploadInstanceMetric())

  // Memory of a backend must enter an operator's sum once per batch and executor, not per partition.
  private val memoryReported = new java.util.concurrent.ConcurrentHashMap[String, java.lang.Long]

  /** The backend's memory for the first caller of an operator and version, 0 for the others. */
  def claimMemory(operator: String, version: Long, backend: Backend): Long = {
    var claimed = false
    memoryReported.compute(operator, (_, last) => {
      if (last == null || last < version) {
        claimed = true
        version
      } else {
        last
      }
    })
    if (claimed) backend.memoryBytes else 0L
  }

  /** Forgets an operator of which a store is closed: should another go on, it is merely told twice. */
  def forget(operator: String): Unit = memoryReported.remove(operator)

  def micros(nanos: Long): Long = nanos / 1000
}

/** What one store instance counted between its load and its commit. */
private[statestore] final class StoreCounters {
  var loadNanos = 0L
  var loadBytes = 0L
  var compactions = 0L
  var roundTrips = 0L
  var full = false
  var cost: CommitCost = new CommitCost(0L, 0L, 0L, 0L, 0L)
}
