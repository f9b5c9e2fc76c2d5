package org.apache.spark.sql.statestore

import java.util.concurrent.atomic.AtomicLong

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.table.StateTable
import org.apache.spark.sql.types.StructType

/**
 * Reading one version of a store.
 *
 * Guarantees: rows are byte-identical to what was put; a row from `get` is good until the next
 * read, a row from an iterator until its `next`, also across writes. Any thread may call, one at a
 * time. Released at the latest when its task ends; releasing twice is fine.
 */
private[statestore] sealed abstract class ContentStore(
    provider: CheckpointStateStoreProvider,
    protected val content: StoreContent,
    override val version: Long) extends ReadStateStore with Logging {

  // Spark's Python state server calls from a second thread that alternates with the task's: the
  // release after a write and the acquire before a read make the one see what the other did.
  private val visibility = new AtomicLong

  override def id: StateStoreId = provider.stateStoreId

  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow = {
    requireKey(key)
    reading(colFamilyName).get(key)
  }

  override def keyExists(key: UnsafeRow, colFamilyName: String): Boolean = {
    requireKey(key)
    reading(colFamilyName).contains(key)
  }

  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    new StateStoreIterator(reading(colFamilyName).iterator())

  override def prefixScan(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    requireKey(prefixKey)
    if (!provider.scansPrefixes) {
      throw StateStoreErrors.unsupportedOperationException("prefixScan", provider.toString)
    }
    new StateStoreIterator(reading(colFamilyName).prefixScan(prefixKey))
  }

  override def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] =
    throw unsupported("several values per key")

  override def prefixScanWithMultiValues(
      prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    throw unsupported("several values per key")

  override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    throw unsupported("several values per key")

  override def registerColFamily(
      colFamilyName: String, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec, useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit = throw unsupported("column families")

  override def allColumnFamilyNames: Set[String] = Set(StateStore.DEFAULT_COL_FAMILY_NAME)

  override def toString: String = s"version $version of $provider"

  /** Fails unless operations are allowed in the present state. */
  protected def requireOpen(): Unit

  protected def reading(colFamilyName: String): StateTable = {
    requireOpen()
    visibility.getAcquire()
    tableOf(colFamilyName)
  }

  protected def written(): Unit = visibility.setRelease(1L)

  protected def tableOf(colFamilyName: String): StateTable =
    if (colFamilyName == StateStore.DEFAULT_COL_FAMILY_NAME) content.table
    else throw StateStoreErrors.unsupportedOperationOnMissingColumnFamily("access", colFamilyName)

  protected def requireKey(key: UnsafeRow): Unit =
    if (key == null) throw new IllegalArgumentException(s"the key must not be null: $this")

  protected def unsupported(what: String): UnsupportedFeatureException =
    new UnsupportedFeatureException(
      s"$what are not supported yet by ${classOf[CheckpointStateStoreProvider].getName}: $this")
}

/** A read-only store; several may share a content. */
private[statestore] final class CheckpointReadStateStore(
    provider: CheckpointStateStoreProvider,
    content: StoreContent,
    version: Long,
    val checkpointId: Option[String],
    val counters: StoreCounters) extends ContentStore(provider, content, version) {

  @volatile private var released = false

  def sharedContent: StoreContent = content

  override def abort(): Unit = release()

  override def release(): Unit = {
    if (!released) {
      released = true
      provider.release(content, this)
    }
  }

  override protected def requireOpen(): Unit =
    if (released) throw new IllegalStateException(s"this read store was released: $this")
}

/** A store that a task writes to and commits as the next version, or aborts without a trace. */
private[statestore] final class CheckpointStateStore(
    provider: CheckpointStateStoreProvider,
    content: StoreContent,
    version: Long,
    val checkpointId: Option[String],
    val forceSnapshot: Boolean,
    val counters: StoreCounters) extends ContentStore(provider, content, version) with StateStore {
  import CheckpointStateStore._

  @volatile private var state = Updating
  private var info: StateStoreCheckpointInfo = _
  private var measured: StateStoreMetrics = _

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
    requireKey(key)
    if (value == null) throw new IllegalArgumentException(s"the value must not be null: $this")
    reading(colFamilyName).put(key, value)
    written()
  }

  override def remove(key: UnsafeRow, colFamilyName: String): Unit = {
    requireKey(key)
    reading(colFamilyName).remove(key)
    written()
  }

  override def commit(): Long = {
    requireOpen()
    reading(StateStore.DEFAULT_COL_FAMILY_NAME)
    val stored = provider.commit(this, content)
    info = StateStoreCheckpointInfo(id.partitionId, version + 1, stored, checkpointId)
    measured = provider.measure(content, counters, version + 1)
    state = Committed
    provider.release(content, this)
    version + 1
  }

  override def abort(): Unit = {
    if (state == Updating) {
      state = Aborted
      provider.abort(this, content)
    }
  }

  override def hasCommitted: Boolean = state == Committed

  override def metrics: StateStoreMetrics = {
    if (measured == null && state == Aborted) measured = provider.measure(content, counters, version)
    if (measured == null) {
      throw new IllegalStateException(s"metrics are known once the store has committed or aborted: $this")
    }
    measured
  }

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo = {
    if (info == null) {
      throw new IllegalStateException(s"checkpoint info is known once the store has committed: $this")
    }
    info
  }

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit =
    throw unsupported("several values per key")

  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit =
    throw unsupported("several values per key")

  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit =
    throw unsupported("several values per key")

  override def createColFamilyIfAbsent(
      colFamilyName: String, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec, useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit = throw unsupported("column families")

  override def removeColFamilyIfExists(colFamilyName: String): Boolean =
    throw unsupported("column families")

  /** Ends with its task, however that ends. */
  def watch(context: TaskContext): Unit =
    context.addTaskCompletionListener[Unit] { task =>
      abort()
      if (hasCommitted && (task.isFailed() || task.isInterrupted())) {
        provider.distrust(content, version)
      }
    }

  override protected def requireOpen(): Unit =
    if (state != Updating) {
      throw new IllegalStateException(
        s"this store has ${if (state == Committed) "committed" else "aborted"} and takes no more operations: $this")
    }
}

private[statestore] object CheckpointStateStore {
  private final val Updating = 0
  private final val Committed = 1
  private final val Aborted = 2
}
