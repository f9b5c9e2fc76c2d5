package org.apache.spark.sql.statestore

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration

import org.apache.spark.{QueryContext, SPARK_VERSION, SparkException, TaskContext}
import org.apache.spark.internal.Logging
import org.apache.spark.sql.errors.QueryExecutionErrors
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.families.{ColumnFamily, FamilySchema, FormatValidation}
import org.apache.spark.sql.statestore.io._
import org.apache.spark.sql.statestore.memory.CheckpointKeeper
import org.apache.spark.sql.statestore.table.TableMemory
import org.apache.spark.sql.types.StructType

/**
 * Keeps the state of one operator partition in a `StateTable` and checkpoints it through the
 * Python backend, as Flink checkpoints: a version is a handle to a base snapshot and the deltas on
 * top of it.
 *
 * Guarantees: a version that `commit` returned is durable and loads as it was, from any executor;
 * a commit that failed or was aborted leaves no trace in any version. What a batch costs follows
 * what it changes. A store whose state was handed to a newer attempt cannot commit any more.
 *
 * Nothing here does I/O before the first `getStore`: `init` runs under a lock that every task of
 * the executor takes, and the constructor and the metric lists are used on the driver as well.
 */
class CheckpointStateStoreProvider extends StateStoreProvider with CheckpointReplay with Logging {
  import CheckpointStateStoreProvider._

  private var id: StateStoreId = _
  private var schema: FamilySchema = _
  private var hasFamilies = false
  private var conf: StateStoreConf = _
  private var hadoopConf: Configuration = _
  private var options: BackendOptions = _
  private var keeper: Option[CheckpointKeeper] = None
  private var runId = ""
  private val instance = java.util.UUID.randomUUID.toString

  // Guarded by `this`.
  private var content: StoreContent = _
  private var closed = false

  private lazy val reports = new CoordinatorReports(id, runId, conf, maintenance.snapshotInterval)

  private lazy val client: CheckpointClient = newClient()

  private lazy val maintenance = new StoreMaintenance(this, client, conf, options)

  override def init(
      stateStoreId: StateStoreId,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean,
      storeConfs: StateStoreConf,
      hadoopConf: Configuration,
      useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): Unit = {
    BuildInfo.requireSpark(SPARK_VERSION)
    this.id = stateStoreId
    this.conf = storeConfs
    this.hadoopConf = hadoopConf
    this.runId = hadoopConf.get("sql.streaming.runId", "")
    this.hasFamilies = useColumnFamilies
    requireSupported(useMultipleValuesPerKey, storeConfs)
    this.options = BackendOptions.parse(storeConfs.sqlConfs)
    TableMemory.limitHeap(options.maxHeapBytes.getOrElse(TableMemory.defaultLimit))
    this.keeper = if (options.isKeptOnDriver) Some(CheckpointKeeper.find()) else None
    this.schema = FamilySchema(
      StateStore.DEFAULT_COL_FAMILY_NAME, keyStateEncoderSpec, valueSchema, useMultipleValuesPerKey, isInternal = false)
  }

  override def stateStoreId: StateStoreId = id

  override def getStore(
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore = loading(version) {
    openStore(version, stateStoreCkptId, None, forceSnapshotOnCommit, loadEmpty)
  }

  override def getReadStore(version: Long, stateStoreCkptId: Option[String]): ReadStateStore =
    loading(version)(openReadStore(version, stateStoreCkptId, None))

  private[statestore] def openStore(
      version: Long,
      stateStoreCkptId: Option[String],
      from: Option[ReplayStart],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore = {
    val counters = new StoreCounters
    var store: CheckpointStateStore = null
    def hold(found: StoreContent): Unit = {
      store = new CheckpointStateStore(
        this, found, version, stateStoreCkptId, forceSnapshotOnCommit, counters)
      found.write(store)
    }
    if (loadEmpty) synchronized(hold(replaceContent(emptyContent(version))))
    else acquire(version, stateStoreCkptId, from, counters, forWriting = true, hold)
    Option(TaskContext.get()).foreach(store.watch)
    store
  }

  private[statestore] def openReadStore(
      version: Long, stateStoreCkptId: Option[String], from: Option[ReplayStart]): ReadStateStore = {
    val counters = new StoreCounters
    var store: CheckpointReadStateStore = null
    acquire(version, stateStoreCkptId, from, counters, forWriting = false, found => {
      store = new CheckpointReadStateStore(this, found, version, stateStoreCkptId, counters)
      found.read(store)
    })
    Option(TaskContext.get()).foreach { context =>
      val opened = store
      context.addTaskCompletionListener[Unit](_ => opened.release())
    }
    store
  }

  override def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore,
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean): StateStore = {
    // Spark hands over whatever read store the task opened last, maybe another operator's.
    val upgraded = readStore match {
      case mine: CheckpointReadStateStore
        if mine.version == version && mine.checkpointId == stateStoreCkptId =>
        synchronized {
          val shared = mine.sharedContent
          val store = new CheckpointStateStore(
            this, shared, version, stateStoreCkptId, forceSnapshotOnCommit, mine.counters)
          if ((content eq shared) && shared.upgrade(mine, store)) Some(store) else None
        }
      case _ => None
    }
    upgraded.foreach(store => Option(TaskContext.get()).foreach(store.watch))
    upgraded.getOrElse(getStore(version, stateStoreCkptId, forceSnapshotOnCommit, loadEmpty = false))
  }

  override def close(): Unit = synchronized {
    closed = true
    content = null
    if (id != null) StoreMetrics.forget(operator)
  }

  override def doMaintenance(): Unit = {
    doSnapshotMaintenance()
    doCleanupMaintenance()
  }

  override def doSnapshotMaintenance(): Unit = maintenance.takeSnapshot(tick = true)

  override def doCleanupMaintenance(): Unit = maintenance.cleanUp()

  override def supportedCustomMetrics: Seq[StateStoreCustomMetric] = StoreMetrics.supported

  override def supportedInstanceMetrics: Seq[StateStoreInstanceMetric] = StoreMetrics.supportedInstances

  override def toString: String =
    if (id == null) {
      "a state store that is not initialised"
    } else {
      s"state store operator ${id.operatorId}, partition ${id.partitionId}, store ${id.storeName} at " +
        id.storeCheckpointLocation()
    }

  /** What is in memory now, null if nothing is. Asked for under the lock. */
  private[statestore] def inMemory: StoreContent = content

  private[statestore] def usesColumnFamilies: Boolean = hasFamilies

  private[statestore] def isKeptOnDriver: Boolean = keeper.isDefined

  private[statestore] def newChangeReader(
      startVersion: Long, endVersion: Long, endId: Option[String], family: String): CheckpointChangeReader =
    new CheckpointChangeReader(id, conf, client, startVersion, endVersion, endId, family)

  /** Creates a column family, or adopts what its operator says of it now. */
  private[statestore] def create(of: StoreContent, since: Long, wanted: FamilySchema): Unit = synchronized {
    val present = of.family(wanted.name)
    if (present == null) of.create(wanted, since) else present.adopt(wanted, toString)
  }

  /** Removes a column family with its rows; false if there is none. */
  private[statestore] def remove(of: StoreContent, name: String): Boolean = synchronized(of.remove(name))

  /** Makes a column family known to this reader and the next ones of this provider. */
  private[statestore] def register(of: StoreContent, wanted: FamilySchema): Unit = {
    val present = of.family(wanted.name)
    if (present == null) registered.put(wanted.name, ColumnFamily.empty(wanted, 0L))
    else present.adopt(wanted, toString)
  }

  /** Families that a reader described and no version has, empty. */
  private[statestore] val registered = new java.util.concurrent.ConcurrentHashMap[String, ColumnFamily]

  /** Publishes what the store changed; returns the new checkpoint id in format v2. */
  private[statestore] def commit(store: CheckpointStateStore, of: StoreContent): Option[String] = {
    val next = store.version + 1
    val (parent, base) = synchronized {
      requireCurrent(store, of)
      (of.newest, of.pendingBase)
    }
    val attempt = newAttempt()
    val newId = if (conf.enableStateStoreCheckpointIds) Some(attempt) else None
    val reply = try publish(store, of, parent, base, attempt, newId) catch {
      case e: java.nio.channels.ClosedByInterruptException => throw e
      case e: InterruptedException => throw e
      case NonFatal(e) =>
        throw QueryExecutionErrors.failedToCommitStateFileError(
          s"version $next of $toString: ${e.getMessage}", e)
    }
    val due = synchronized {
      requireCurrent(store, of)
      // It was taken, or cannot be any more.
      if (base.exists(sent => of.pendingBase.exists(_ eq sent))) of.pendingBase = None
      of.committed(next, newId, reply.stored)
      maintenance.isDue(of, tick = false)
    }
    store.counters.cost = reply.cost
    store.counters.full = reply.stored.baseVersion == next
    reports.committed(next)
    reports.snapshot(reply.stored.baseVersion)
    if (due) Background.submit(() => maintenance.takeSnapshot(tick = false))
    newId
  }

  private[statestore] def abort(store: CheckpointStateStore, of: StoreContent): Unit = synchronized {
    if (of.isWriter(store)) {
      of.rollback()
      of.release(store)
    }
  }

  private[statestore] def release(of: StoreContent, holder: AnyRef): Unit = synchronized(of.release(holder))

  /**
   * The task failed after it had committed: another attempt may commit the same version otherwise.
   * In format v2 the id tells the two apart; in v1 only forgetting ours makes the next task look.
   */
  private[statestore] def distrust(of: StoreContent, version: Long): Unit = synchronized {
    if (!conf.enableStateStoreCheckpointIds && (content eq of) && of.isIdle &&
      !of.rewind(version, None)) {
      content = null
    }
  }

  private[statestore] def measure(of: StoreContent, counters: StoreCounters, version: Long): StateStoreMetrics = {
    val stored = synchronized(of.newest.stored)
    val cost = counters.cost
    val custom = Map[StateStoreCustomMetric, Long](
      StoreMetrics.LoadTime -> StoreMetrics.micros(counters.loadNanos),
      StoreMetrics.LoadBytes -> counters.loadBytes,
      StoreMetrics.SealTime -> StoreMetrics.micros(cost.sealNanos),
      StoreMetrics.SendTime -> StoreMetrics.micros(cost.sendNanos),
      StoreMetrics.StoreTime -> StoreMetrics.micros(cost.storeNanos),
      StoreMetrics.BytesWritten -> cost.bytes,
      StoreMetrics.ObjectsWritten -> cost.objects,
      StoreMetrics.ChainLength -> stored.fold(0L)(_.chainLength.toLong),
      StoreMetrics.SnapshotAge -> stored.fold(0L)(version - _.baseVersion),
      StoreMetrics.FullSnapshots -> (if (counters.full) 1L else 0L),
      StoreMetrics.Compactions -> counters.compactions,
      StoreMetrics.RoundTrips -> counters.roundTrips,
      StoreMetrics.Restarts -> client.backend.takeRestarts(),
      StoreMetrics.StorageRetries -> client.backend.takeStorageRetries(),
      StoreMetrics.BackendMemory -> StoreMetrics.claimMemory(operator, version, client.backend))
    StateStoreMetrics(
      of.numKeys,
      of.memoryBytes,
      custom,
      Map[StateStoreInstanceMetric, Long](
        StateStoreSnapshotLastUploadInstanceMetric(Some(id.partitionId), id.storeName) ->
          stored.fold(-1L)(_.baseVersion)))
  }

  private def operator: String = s"$runId/${id.checkpointRootLocation}/${id.operatorId}"

  // Takes what is in memory if it is that version and free, else loads.
  private def acquire(
      version: Long,
      ckptId: Option[String],
      from: Option[ReplayStart],
      counters: StoreCounters,
      forWriting: Boolean,
      hold: StoreContent => Unit): Unit = {
    val start = System.nanoTime()
    val found = synchronized {
      requireNotClosed()
      val usable = from.isEmpty && content != null && {
        if (content.isIdle) content.rewind(version, ckptId)
        else !forWriting && content.canRead(version, ckptId)
      }
      if (usable) {
        if (content.isIdle && content.compactIfWanted()) counters.compactions += 1
        hold(content)
      } else {
        // Whoever holds it keeps it for himself; if nobody does, make room before loading.
        content = null
      }
      usable
    }
    if (!found) {
      val loaded = if (version == 0) emptyContent(0L) else load(version, ckptId, from, counters)
      synchronized(hold(replaceContent(loaded)))
    }
    if (version == 0) client.backend.prestart()
    counters.loadNanos += System.nanoTime() - start
  }

  private def replaceContent(by: StoreContent): StoreContent = {
    requireNotClosed()
    content = by
    by
  }

  private def emptyContent(version: Long): StoreContent =
    new StoreContent(version, None, Seq(ColumnFamily.empty(schema, version)), None, versionsInMemory)

  private def load(
      version: Long, ckptId: Option[String], from: Option[ReplayStart], counters: StoreCounters): StoreContent = {
    var families = Seq.empty[ColumnFamily]
    val found = client.load(version, ckptId, from, states => {
      families = states.map { state =>
        // The operator says what its plain state is.
        val described = if (state.path("name").asText == schema.name) schema else FamilySchema.read(state)
        ColumnFamily.empty(described, state.path("since").asLong)
      }
      families.map(_.table)
    })
    counters.roundTrips += 1
    counters.loadBytes += found.bytesRead
    families.foreach { family =>
      // With column families the schema of the plain state is a dummy, those of the others are stored.
      if (!hasFamilies) FormatValidation(family, id, conf)
      if (family.table.wantsCompaction) {
        family.table.compact()
        counters.compactions += 1
      }
    }
    new StoreContent(version, ckptId, families, Some(found.stored), versionsInMemory)
  }

  private def publish(
      store: CheckpointStateStore,
      of: StoreContent,
      parent: VersionMark,
      base: Option[StoredBase],
      attempt: String,
      newId: Option[String]): CommitReply = {
    val full = SnapshotPolicy.fullOnCommit(
      parent.stored.fold(0)(_.chainLength), maintenance.snapshotInterval, of.liveBytes, of.changedBytes(parent),
      store.forceSnapshot, maintenance.takesSnapshots)
    def send(everything: Boolean): CommitReply = {
      val states = of.families.map { family =>
        val mark = family.mark()
        if (everything) {
          NamedState.whole(mark)
        } else {
          val from = parent.tailOf(family)
          new NamedState(mark.describe(), () => family.table.scan(mark.content.view, from),
            new RecordSelection.Changes(family.table.existedAt(from, _)))
        }
      }
      store.counters.roundTrips += 1
      client.commit(
        store.version + 1, attempt, newId.isDefined,
        if (everything) None else parent.stored,
        parent.stored.map(_.attempt),
        if (everything) None else base,
        store.version - options.numRetained(conf.minVersionsToRetain),
        states.toSeq)
    }
    try send(full) catch {
      // The driver does not keep the parent any more; the table still has everything.
      case e: BackendException if e.kind == "StateLostError" && !full => send(everything = true)
    }
  }

  private def requireCurrent(store: CheckpointStateStore, of: StoreContent): Unit =
    if (closed || !(content eq of) || !of.isWriter(store)) {
      throw new StaleStateStoreException(
        s"version ${store.version + 1} of $this is not committed by this task: a newer attempt of the same " +
          "partition took the state over, or the store was unloaded. Nothing is lost, the newer attempt " +
          "commits it; if the task is retried, it starts from the committed version.")
    }

  private def requireNotClosed(): Unit =
    if (closed) {
      throw new IllegalStateException(s"the provider was closed, Spark opens another one: $this")
    }

  private def requireSupported(multipleValues: Boolean, confs: StateStoreConf): Unit = {
    if (multipleValues && !hasFamilies) {
      throw new IllegalArgumentException(s"several values per key need column families: $this")
    }
    if (confs.stateStoreEncodingFormat == "avro") {
      throw new UnsupportedFeatureException(
        s"${classOf[CheckpointStateStoreProvider].getName} does not support Avro encoding of state, " +
          s"spark.sql.streaming.stateStore.encodingFormat=avro; set it to unsaferow: $this")
    }
  }

  private def versionsInMemory: Int = math.max(2, conf.maxVersionsToRetainInMemory)

  private def newClient(): CheckpointClient = {
    val location = StoreLocation.of(id, options, hadoopConf)
    val store = CheckpointClient.mapper.createObjectNode()
    store.put("instance", instance)
    store.put("root", location)
    store.put("operator", id.operatorId)
    store.put("partition", id.partitionId)
    store.put("name", id.storeName)
    store.put("commits", StoreLocation.commitLog(id))
    options.addTo(store.putObject("options"))
    new CheckpointClient(Backend.of(PythonInterpreter.choose(options, hadoopConf)), store, keeper)
  }

  /** Runs what loads a version; its failures become Spark's, with the condition that belongs to them. */
  private[statestore] def loading[T](
      version: Long, conditionOf: Throwable => Option[String] = _ => None)(body: => T): T = {
    if (version < 0) throw QueryExecutionErrors.unexpectedStateStoreVersion(version)
    try body catch {
      case e: java.nio.channels.ClosedByInterruptException => throw e
      case NonFatal(e) =>
        val condition = conditionOf(e).getOrElse(CannotLoad)
        // Python shows the outermost message alone, so ours must be part of it.
        throw new SparkException(
          s"[$condition] An error occurred during loading state: ${e.getMessage}", e, Some(condition),
          Map.empty[String, String], Array.empty[QueryContext], None)
    }
  }

}

private[statestore] object CheckpointStateStoreProvider {
  private val CannotLoad = "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED"
  private val random = new java.security.SecureRandom

  /** 64 random bits in hex: names one commit attempt, and the version in checkpoint format v2. */
  def newAttempt(): String = {
    val bytes = new Array[Byte](8)
    random.nextBytes(bytes)
    java.util.HexFormat.of().formatHex(bytes)
  }
}
