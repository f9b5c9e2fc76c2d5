package org.apache.spark.sql.statestore

import java.util.concurrent.atomic.AtomicLong

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.families.{FamilyNames, FamilySchema}
import org.apache.spark.sql.statestore.table.StateTable
import org.apache.spark.sql.types.StructType

/**
 * Reading one version of a store.
 *
 * Guarantees: rows are byte-identical to what was put; a row from `get` is good until the next
 * read, a row from an iterator until its `next`, also across writes. An iterator shows what was there
 * when it was made, and nothing of later writes. Any thread may call, one at a time. Released at
 * the latest when its task ends; releasing twice is fine.
 */
private[statestore] sealed abstract class ContentStore(
    provider: CheckpointStateStoreProvider,
    protected val content: StoreContent,
    override val version: Long) extends ReadStateStore with Logging {

  // Spark's Python state server calls from a second thread that alternates with the task's: the
  // release after a write and the acquire before a read make the one see what the other did.
  private val writes = new AtomicLong

  override def id: StateStoreId = provider.stateStoreId

  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow = {
    requireKey(key)
    reading("get", colFamilyName).get(key)
  }

  override def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow] = {
    keys.foreach(requireKey)
    val table = reading("multiGet", colFamilyName)
    keys.iterator.map(table.get)
  }

  override def keyExists(key: UnsafeRow, colFamilyName: String): Boolean = {
    requireKey(key)
    reading("keyExists", colFamilyName).contains(key)
  }

  override def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] = {
    requireKey(key)
    lists("valuesIterator", colFamilyName).valuesOf(key)
  }

  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    new StateStoreIterator(reading("iterator", colFamilyName).iterator())

  override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    new StateStoreIterator(lists("iteratorWithMultiValues", colFamilyName).iterator(everyValue = true))

  override def prefixScan(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    requireKey(prefixKey)
    new StateStoreIterator(prefixed("prefixScan", reading("prefixScan", colFamilyName)).prefixScan(prefixKey))
  }

  override def prefixScanWithMultiValues(
      prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    requireKey(prefixKey)
    val table = prefixed("prefixScanWithMultiValues", lists("prefixScanWithMultiValues", colFamilyName))
    new StateStoreIterator(table.prefixScan(prefixKey, everyValue = true))
  }

  override def rangeScan(
      startKey: Option[UnsafeRow], endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val table = ordered("rangeScan", reading("rangeScan", colFamilyName))
    new StateStoreIterator(table.rangeScan(startKey, endKey))
  }

  override def rangeScanWithMultiValues(
      startKey: Option[UnsafeRow], endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val table = ordered("rangeScanWithMultiValues", lists("rangeScanWithMultiValues", colFamilyName))
    new StateStoreIterator(table.rangeScan(startKey, endKey, everyValue = true))
  }

  override def registerColFamily(
      colFamilyName: String, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec, useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit = {
    requireOpen()
    requireFamilies("registerColFamily")
    FamilyNames.requireFree("register_col_family", colFamilyName, isInternal)
    provider.register(content, FamilySchema(
      colFamilyName, keyStateEncoderSpec, valueSchema, useMultipleValuesPerKey, isInternal))
  }

  override def allColumnFamilyNames: Set[String] = {
    visibility()
    content.families.map(_.name).toSet
  }

  override def toString: String = s"version $version of $provider"

  /** Fails unless operations are allowed in the present state. */
  protected def requireOpen(): Unit

  protected def reading(operation: String, colFamilyName: String): StateTable = {
    requireOpen()
    visibility()
    val family = content.family(colFamilyName)
    if (family != null) family.table else absent(operation, colFamilyName)
  }

  /** Stands in for a column family that the version does not have, or fails. */
  protected def absent(operation: String, colFamilyName: String): StateTable = {
    requireFamilies(operation)
    FamilyNames.require(operation, colFamilyName)
    throw StateStoreErrors.unsupportedOperationOnMissingColumnFamily(operation, colFamilyName)
  }

  protected def visibility(): Unit = writes.getAcquire()

  protected def written(): Unit = writes.setRelease(1L)

  /** The table of a column family whose keys may have several values. */
  protected def lists(operation: String, colFamilyName: String): StateTable = {
    val table = reading(operation, colFamilyName)
    if (!table.hasLists) {
      throw new IllegalStateException(
        s"$operation needs a column family with several values per key, and $colFamilyName has one: $this")
    }
    table
  }

  protected def ordered(operation: String, table: StateTable): StateTable = {
    if (!table.isOrdered) throw StateStoreErrors.unsupportedOperationException(operation, provider.toString)
    table
  }

  protected def requireFamilies(operation: String): Unit =
    if (!provider.usesColumnFamilies) {
      throw StateStoreErrors.unsupportedOperationException(
        operation, s"a store that was opened without column families, $provider,")
    }

  protected def requireKey(key: UnsafeRow): Unit =
    if (key == null) throw new IllegalArgumentException(s"the key must not be null: $this")

  protected def requireValue(value: UnsafeRow): Unit =
    if (value == null) throw new IllegalArgumentException(s"the value must not be null: $this")

  private def prefixed(operation: String, table: StateTable): StateTable = {
    if (!table.scansPrefixes) throw StateStoreErrors.unsupportedOperationException(operation, provider.toString)
    table
  }
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

  /** Keys of one prefix come together: Spark's reader makes one row of neighbours in a map's state. */
  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    new StateStoreIterator(reading("iterator", colFamilyName).groupedIterator())

  override def release(): Unit = {
    if (!released) {
      released = true
      provider.release(content, this)
    }
  }

  override protected def absent(operation: String, colFamilyName: String): StateTable = {
    val described = provider.registered.get(colFamilyName)
    if (described == null) super.absent(operation, colFamilyName) else described.table
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
    val counters: StoreCounters)
  extends ContentStore(provider, content, version) with StateStore with SupportsReusableIterator {
  import CheckpointStateStore._

  @volatile private var state = Updating
  private var info: StateStoreCheckpointInfo = _
  private var measured: StateStoreMetrics = _

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
    requireKey(key)
    requireValue(value)
    reading("put", colFamilyName).put(key, value)
    written()
  }

  override def remove(key: UnsafeRow, colFamilyName: String): Unit = {
    requireKey(key)
    reading("remove", colFamilyName).remove(key)
    written()
  }

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = {
    requireKey(key)
    values.foreach(requireValue)
    val table = lists("putList", colFamilyName)
    // There is no empty list.
    if (values.isEmpty) table.remove(key) else table.put(key, values(0))
    values.iterator.drop(1).foreach(table.add(key, _))
    written()
  }

  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
    requireKey(key)
    requireValue(value)
    lists("merge", colFamilyName).add(key, value)
    written()
  }

  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = {
    requireKey(key)
    values.foreach(requireValue)
    val table = lists("mergeList", colFamilyName)
    values.foreach(table.add(key, _))
    written()
  }

  override def deleteRange(beginKey: UnsafeRow, endKey: UnsafeRow, colFamilyName: String): Unit = {
    requireKey(beginKey)
    requireKey(endKey)
    val table = ordered("deleteRange", reading("deleteRange", colFamilyName))
    // Behind the keys of a timestamp last, from one key to another means nothing.
    content.family(colFamilyName).schema.spec match {
      case _: RangeKeyScanStateEncoderSpec => table.removeRange(beginKey, endKey)
      case _ => throw StateStoreErrors.unsupportedOperationException("deleteRange", provider.toString)
    }
    written()
  }

  override def reusableIterator(colFamilyName: String): ReusableIterator[UnsafeRowPair] =
    new SeekingIterator(() => ordered("reusableIterator", reading("reusableIterator", colFamilyName)))

  override def createColFamilyIfAbsent(
      colFamilyName: String, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec, useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit = {
    requireOpen()
    requireFamilies("create_col_family")
    FamilyNames.requireFree("create_col_family", colFamilyName, isInternal)
    visibility()
    provider.create(content, version + 1, FamilySchema(
      colFamilyName, keyStateEncoderSpec, valueSchema, useMultipleValuesPerKey, isInternal))
    written()
  }

  override def removeColFamilyIfExists(colFamilyName: String): Boolean = {
    requireOpen()
    requireFamilies("remove_col_family")
    FamilyNames.requireFree("remove_col_family", colFamilyName, isInternal = false)
    visibility()
    val removed = provider.remove(content, colFamilyName)
    written()
    removed
  }

  override def commit(): Long = {
    requireOpen()
    visibility()
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
