package org.apache.spark.sql.statestore.provider

import java.util.concurrent.atomic.AtomicLong

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.{CheckpointStateStoreProvider, EndedStoreException, Errors,
  UnsupportedFeatureException}
import org.apache.spark.sql.statestore.compat.{NewestReadStateStore, NewestStateStore}
import org.apache.spark.sql.statestore.families.{ColumnFamily, FamilyNames, FamilySchema}
import org.apache.spark.sql.statestore.table.{ReadLease, RowView, StateTable}
import org.apache.spark.sql.types.StructType

/**
 * Read operations on one version of a store.
 *
 * Guarantees: rows are byte-identical to those that were put; a row from `get` is valid until the next
 * read, a row from an iterator until its `next`, also across writes. An iterator is a snapshot of its
 * creation. Any thread may call, one at a time. Released at the latest when its task ends; `release` is
 * idempotent. Iterators are valid until the task ends; then they fail.
 */
private[statestore] sealed abstract class LoadedStateReader(
    provider: CheckpointStateStoreProvider,
    protected val content: LoadedState,
    override val version: Long) extends NewestReadStateStore with Logging {

  // Spark's Python state server calls from a second thread that alternates with the task's: release after a
  // write, or after `get` has moved its row, and acquire before a read publish the writes of one to the other.
  private val writes = new AtomicLong

  // The rows that `get` returns, one for each table that was read, and that of the table that was read last: operators
  // access the same one row by row. A thread that does not see an entry of another one makes its own.
  private var rows = List.empty[TableRow]
  private var latest: TableRow = _

  protected val lease: ReadLease = content.newLease()

  override def id: StateStoreId = provider.stateStoreId

  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow = {
    requireKey(key)
    val pinned = enter()
    try {
      val table = reading("get", colFamilyName)
      val value = table.get(key, rowOf(table))
      releaseWrites()
      value
    } finally {
      lease.exit(pinned)
    }
  }

  override def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow] = {
    keys.foreach(requireKey)
    leased(new LeasedIterator(lease, reading("multiGet", colFamilyName).firstValues(keys)))
  }

  override def keyExists(key: UnsafeRow, colFamilyName: String): Boolean = {
    requireKey(key)
    val pinned = enter()
    try reading("keyExists", colFamilyName).contains(key) finally lease.exit(pinned)
  }

  override def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] = {
    requireKey(key)
    leased(new LeasedIterator(lease, lists("valuesIterator", colFamilyName).valuesOf(key)))
  }

  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    pairs(reading("iterator", colFamilyName).iterator())

  override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    pairs(lists("iteratorWithMultiValues", colFamilyName).iterator(everyValue = true))

  override def prefixScan(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    requireKey(prefixKey)
    pairs(prefixed("prefixScan", reading("prefixScan", colFamilyName)).prefixScan(prefixKey))
  }

  override def prefixScanWithMultiValues(
      prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    requireKey(prefixKey)
    requireOpen()
    val table = prefixed("prefixScanWithMultiValues", lists("prefixScanWithMultiValues", colFamilyName))
    pairs(table.prefixScan(prefixKey, everyValue = true))
  }

  override def rangeScan(
      startKey: Option[UnsafeRow], endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val table = orderedTable("rangeScan", colFamilyName)
    pairs(table.rangeScan(startKey, endKey))
  }

  override def rangeScanWithMultiValues(
      startKey: Option[UnsafeRow], endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    requireOpen()
    val table = ordered("rangeScanWithMultiValues", lists("rangeScanWithMultiValues", colFamilyName))
    pairs(table.rangeScan(startKey, endKey, everyValue = true))
  }

  override def registerColFamily(
      colFamilyName: String, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec, useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit = {
    requireOpen()
    requireFamilies("registerColFamily")
    FamilyNames.requireFree("register_col_family", colFamilyName, isInternal)
    leased(register(FamilySchema(colFamilyName, keyStateEncoderSpec, valueSchema, useMultipleValuesPerKey, isInternal)))
  }

  override def allColumnFamilyNames: Set[String] = {
    visibility()
    content.families.map(_.name).toSet
  }

  override def toString: String = s"version $version of $provider"

  /** Makes the schema of a column family known. */
  protected def register(declaredSchema: FamilySchema): Unit

  /** Fails unless the store is open. */
  protected def requireOpen(): Unit

  /** Begins an operation on tables, which `lease.exit` ends. */
  protected def enter(): Boolean = {
    requireOpen()
    val pinned = lease.enter()
    // `abort` waits for the operations of other threads that have begun before the store took no more.
    try if (pinned) requireOpen() catch {
      case e: EndedStoreException =>
        lease.exit(pinned)
        throw e
    }
    pinned
  }

  /** Runs an operation on tables under the store's lease on their memory. */
  protected def leased[T](operation: => T): T = {
    val pinned = enter()
    try operation finally lease.exit(pinned)
  }

  protected def pairs(rows: => Iterator[UnsafeRowPair]): StateStoreIterator[UnsafeRowPair] =
    leased(new StateStoreIterator(new LeasedIterator(lease, rows)))

  /** Returns the table of a column family of an open store. */
  protected def reading(operation: String, colFamilyName: String): StateTable = {
    visibility()
    val family = content.family(colFamilyName)
    if (family != null) family.table else absent(operation, colFamilyName)
  }

  /** Returns the substitute of a missing column family, or fails. */
  protected def absent(operation: String, colFamilyName: String): StateTable = {
    requireFamilies(operation)
    FamilyNames.require(operation, colFamilyName)
    throw StateStoreErrors.unsupportedOperationOnMissingColumnFamily(operation, colFamilyName)
  }

  private def rowOf(table: StateTable): RowView = {
    val entry = latest
    if (entry != null && (entry.table eq table)) entry.row else findRow(table)
  }

  private def findRow(table: StateTable): RowView = {
    val entry = rows.find(_.table eq table).getOrElse {
      val tableRow = new TableRow(table, table.newRow())
      rows ::= tableRow
      tableRow
    }
    latest = entry
    entry.row
  }

  protected def visibility(): Unit = writes.getAcquire()

  protected def releaseWrites(): Unit = writes.setRelease(1L)

  /** Returns the table of a column family with several values per key. */
  protected def lists(operation: String, colFamilyName: String): StateTable = {
    val table = reading(operation, colFamilyName)
    if (!table.hasLists) {
      throw new IllegalStateException(
        s"$operation needs a column family with several values per key, and $colFamilyName has one: $this")
    }
    table
  }

  /** Returns the table of an ordered column family of an open store. */
  protected def orderedTable(operation: String, colFamilyName: String): StateTable = {
    requireOpen()
    ordered(operation, reading(operation, colFamilyName))
  }

  private def ordered(operation: String, table: StateTable): StateTable = {
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

/** A table and the row that one store reads its values with, as one immutable object. */
private final class TableRow(val table: StateTable, val row: RowView)

/**
 * A read-only store; several may share a loaded state. Spark's RocksDB provider returns read stores of the type of a writable
 * one, so it has that type; writes throw.
 */
private[statestore] final class CheckpointReadStateStore(
    provider: CheckpointStateStoreProvider,
    content: LoadedState,
    version: Long,
    val checkpointId: Option[String],
    val counters: StoreCounters) extends LoadedStateReader(provider, content, version) with NewestStateStore {

  @volatile private var released = false

  // Families that Spark's state data source has declared for its option joinSide.
  private val joinSides = java.util.concurrent.ConcurrentHashMap.newKeySet[String]()

  // Families whose values were converted for this store: others may read the same state with another schema.
  private val converted = new java.util.concurrent.ConcurrentHashMap[String, ColumnFamily]

  /** Releases the store and its iterators when its task ends. */
  def end(): Unit = {
    release()
    lease.close()
  }

  def sharedContent: LoadedState = content

  /** True if a provider has opened the store: other operators have the same versions, and stores of other runs the same id. */
  def isOf(opener: CheckpointStateStoreProvider): Boolean = provider eq opener

  override def abort(): Unit = release()

  /** Returns the keys of one prefix together: Spark's reader groups adjacent rows of map state. */
  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    pairs(reading("iterator", colFamilyName).groupedIterator())

  /** Returns the keys of a join side as its reader expects them. */
  override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    if (joinSides.contains(colFamilyName)) {
      val family = content.family(colFamilyName)
      val keys = family.schema.joinSideKeys()
      val pair = new UnsafeRowPair
      pairs(family.table.iterator(everyValue = true).map(row => pair.withRows(keys(row.key), row.value)))
    } else {
      super.iteratorWithMultiValues(colFamilyName)
    }

  override def release(): Unit = {
    if (!released) {
      released = true
      provider.release(content, this)
    }
  }

  override protected def register(declaredSchema: FamilySchema): Unit = {
    val present = content.family(declaredSchema.name)
    if (present != null && present.schema.isJoinSide(declaredSchema)) joinSides.add(declaredSchema.name)
    else provider.declared.registerForReading(content, version, declaredSchema).foreach(converted.put(declaredSchema.name, _))
  }

  override protected def reading(operation: String, colFamilyName: String): StateTable = {
    if (joinSides.contains(colFamilyName)) {
      throw new UnsupportedFeatureException(
        s"$operation of $colFamilyName is not supported with the keys that the state data source declares for " +
          s"joinSide, which only iterates over all rows. Read it with storeName=$colFamilyName instead: $this")
    }
    val own = if (converted.isEmpty) null else converted.get(colFamilyName)
    if (own == null) super.reading(operation, colFamilyName) else own.table
  }

  override protected def absent(operation: String, colFamilyName: String): StateTable = {
    val described = provider.declared.find(colFamilyName)
    if (described == null) super.absent(operation, colFamilyName) else described.table
  }

  override protected def requireOpen(): Unit =
    if (released) throw new EndedStoreException(version, s"this read store was released: $this")

  override def hasCommitted: Boolean = false

  override def createColFamilyIfAbsent(
      colFamilyName: String, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec, useMultipleValuesPerKey: Boolean, isInternal: Boolean): Unit = readOnly()

  override def removeColFamilyIfExists(colFamilyName: String): Boolean = readOnly()

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = readOnly()

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = readOnly()

  override def remove(key: UnsafeRow, colFamilyName: String): Unit = readOnly()

  override def deleteRange(beginKey: UnsafeRow, endKey: UnsafeRow, colFamilyName: String): Unit = readOnly()

  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = readOnly()

  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = readOnly()

  override def commit(): Long = readOnly()

  override def metrics: StateStoreMetrics = readOnly()

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo = readOnly()

  private def readOnly(): Nothing = throw new UnsupportedOperationException(s"this store is read-only: $this")
}

/** A store that a task writes to and commits as the next version, or aborts without a trace. */
private[statestore] final class CheckpointStateStore(
    provider: CheckpointStateStoreProvider,
    content: LoadedState,
    version: Long,
    val checkpointId: Option[String],
    val forceSnapshot: Boolean,
    val counters: StoreCounters)
  extends LoadedStateReader(provider, content, version) with NewestStateStore with ReusableScans {
  import CheckpointStateStore._

  @volatile private var state = Updating
  @volatile private var task: TaskContext = _
  private var info: StateStoreCheckpointInfo = _
  private var measured: StateStoreMetrics = _

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
    requireKey(key)
    requireValue(value)
    val pinned = enter()
    try reading("put", colFamilyName).put(key, value) finally lease.exit(pinned)
    releaseWrites()
  }

  override def remove(key: UnsafeRow, colFamilyName: String): Unit = {
    requireKey(key)
    val pinned = enter()
    try reading("remove", colFamilyName).remove(key) finally lease.exit(pinned)
    releaseWrites()
  }

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = {
    requireKey(key)
    values.foreach(requireValue)
    leased {
      val table = lists("putList", colFamilyName)
      // An empty list is an absent key.
      if (values.isEmpty) table.remove(key) else table.put(key, values(0))
      values.iterator.drop(1).foreach(table.merge(key, _))
    }
    releaseWrites()
  }

  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
    requireKey(key)
    requireValue(value)
    val pinned = enter()
    try lists("merge", colFamilyName).merge(key, value) finally lease.exit(pinned)
    releaseWrites()
  }

  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = {
    requireKey(key)
    values.foreach(requireValue)
    leased {
      val table = lists("mergeList", colFamilyName)
      values.foreach(table.merge(key, _))
    }
    releaseWrites()
  }

  override def deleteRange(beginKey: UnsafeRow, endKey: UnsafeRow, colFamilyName: String): Unit = {
    requireKey(beginKey)
    requireKey(endKey)
    val table = orderedTable("deleteRange", colFamilyName)
    // Keys with the timestamp last are not totally ordered.
    content.family(colFamilyName).schema.spec match {
      case _: RangeKeyScanStateEncoderSpec => leased(table.removeRange(beginKey, endKey))
      case _ => throw StateStoreErrors.unsupportedOperationException("deleteRange", provider.toString)
    }
    releaseWrites()
  }

  override def createColFamilyIfAbsent(
      colFamilyName: String, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec, useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit = {
    requireOpen()
    requireFamilies("create_col_family")
    FamilyNames.requireFree("create_col_family", colFamilyName, isInternal)
    visibility()
    leased(provider.declared.create(content, version + 1, FamilySchema(
      colFamilyName, keyStateEncoderSpec, valueSchema, useMultipleValuesPerKey, isInternal)))
    releaseWrites()
  }

  override def removeColFamilyIfExists(colFamilyName: String): Boolean = {
    requireOpen()
    requireFamilies("remove_col_family")
    FamilyNames.requireFree("remove_col_family", colFamilyName, isInternal = false)
    visibility()
    val removed = leased(provider.declared.remove(content, colFamilyName))
    releaseWrites()
    removed
  }

  override protected def register(declaredSchema: FamilySchema): Unit = provider.declared.register(content, version + 1, declaredSchema)

  override def commit(): Long = {
    if (state != Updating) throw Errors.outOfOrder(ended)
    visibility()
    val stored = leased(provider.commit(this, content))
    info = StateStoreCheckpointInfo(id.partitionId, version + 1, stored, checkpointId)
    measured = provider.measure(content, counters, version + 1)
    state = Committed
    provider.release(content, this)
    version + 1
  }

  override def abort(): Unit = {
    if (state == Committed) throw Errors.outOfOrder(s"this store has committed and cannot be aborted: $this")
    if (state == Updating) {
      leased {
        state = Aborted
        // Spark does not wait for its state server for Python, which may be inside an operation as the task ends.
        provider.abort(this, content, isQuiet = lease.awaitOthers())
      }
    }
  }

  override def hasCommitted: Boolean = state == Committed

  override def metrics: StateStoreMetrics = {
    if (measured == null && state == Aborted) measured = provider.measure(content, counters, version)
    if (measured == null) {
      throw Errors.outOfOrder(s"metrics are known once the store has committed or aborted: $this")
    }
    measured
  }

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo = {
    if (info == null) {
      throw Errors.outOfOrder(s"checkpoint info is known once the store has committed: $this")
    }
    info
  }

  /** True if the task that opened the store was killed. */
  def isKilled: Boolean = {
    val opened = task
    opened != null && opened.isInterrupted()
  }

  /** Ends the store with its task: aborts it if it has not committed. */
  def watch(context: TaskContext): Unit = {
    task = context
    context.addTaskCompletionListener[Unit] { task =>
      try {
        if (!hasCommitted) abort()
        else if (task.isFailed() || task.isInterrupted()) provider.invalidate(content, version)
      } finally {
        lease.close()
      }
    }
  }

  override protected def requireOpen(): Unit =
    if (state != Updating) throw new EndedStoreException(version, ended)

  private def ended: String =
    s"this store has ${if (state == Committed) "committed" else "aborted"} and takes no more operations: $this"
}

private[statestore] object CheckpointStateStore {
  private final val Updating = 0
  private final val Committed = 1
  private final val Aborted = 2
}
