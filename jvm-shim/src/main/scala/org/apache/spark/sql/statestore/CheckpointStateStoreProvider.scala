package org.apache.spark.sql.statestore

import java.util.concurrent.locks.ReentrantLock

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration

import org.apache.spark.{SPARK_VERSION, TaskContext}
import org.apache.spark.internal.Logging
import org.apache.spark.sql.errors.QueryExecutionErrors
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.backend._
import org.apache.spark.sql.statestore.compat.{NewestStateStoreProvider, TaskReadStores}
import org.apache.spark.sql.statestore.driver.DriverCheckpointStore
import org.apache.spark.sql.statestore.families.{FamilySchema, ValueEvolution}
import org.apache.spark.sql.statestore.provider._
import org.apache.spark.sql.statestore.table.TableMemory
import org.apache.spark.sql.types.StructType

/**
 * State store provider that keeps the state of one operator partition in `StateTable`s and checkpoints
 * it through the Python backend: a version is a handle to a base snapshot and the deltas on top of it.
 *
 * Guarantees: a version that `commit` returned is durable and can be loaded on any executor, if it was handed
 * over (`CommitCollector`, `Handover`) before Spark commits the batch; a failed or aborted commit is part of no version. The
 * cost of a batch is proportional to its changes. Stores of one version that are open at once each have a state of their
 * own, as on two executors, and each can commit. A store cannot commit once its task was killed, or a later version
 * was opened.
 *
 * Nothing does I/O before the first `getStore`: `init` runs under a lock that every task of the executor
 * takes, and the driver uses the constructor and the metric lists, too.
 *
 * It has the type of Spark's RocksDB provider, which Spark 4.3 demands before it lets a stream-stream join use state format
 * 3 or 4. No inherited code runs, so RocksDB's native library is never loaded.
 */
class CheckpointStateStoreProvider
  extends RocksDBStateStoreProvider with NewestStateStoreProvider with CheckpointReplay with Logging {
  private var id: StateStoreId = _
  private var schema: FamilySchema = _
  private var conf: StateStoreConf = _
  private var hadoopConf: Configuration = _
  private var options: BackendOptions = _
  private var evolution: ValueEvolution = _
  private var driverStore: Option[DriverCheckpointStore] = None
  private var kind: StoreKind = _
  // Whether its state is for another provider.
  private var isPrepared = false
  private val taskReadStores = new TaskReadStores
  private val instance = java.util.UUID.randomUUID.toString

  // Guarded by `this`.
  private var content: LoadedState = _
  private var closed = false
  // Stores that may commit.
  private val writers = java.util.Collections.newSetFromMap(
    new java.util.IdentityHashMap[CheckpointStateStore, java.lang.Boolean])
  private var hasWarned = false
  // The last commit that was handed over.
  @volatile private var pending: PendingCommit = _

  // The last version that was handed over and is durable, for metrics.
  @volatile private var lastReply: Option[(Long, CommitReply)] = None

  private lazy val reports = new CoordinatorReports(id, kind.run, conf)

  private lazy val client: CheckpointClient = newClient()

  private lazy val loader = new StateLoader(
    client, id, schema, usesColumnFamilies, conf, toString, options.localRecoveryMaxBytes)

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
    this.kind = StoreKind(
      stateStoreId.checkpointRootLocation, stateStoreId.operatorId, stateStoreId.storeName,
      hadoopConf.get("sql.streaming.runId", ""), keySchema, valueSchema, keyStateEncoderSpec, useColumnFamilies, storeConfs,
      useMultipleValuesPerKey, stateSchemaProvider)
    if (useMultipleValuesPerKey && !useColumnFamilies) {
      throw new IllegalArgumentException(s"several values per key need column families: $this")
    }
    this.evolution = new ValueEvolution(stateSchemaProvider.filter(_ => storeConfs.stateStoreEncodingFormat == "avro"))
    this.options = BackendOptions.parse(storeConfs.sqlConfs)
    TableMemory.limitHeap(options.maxHeapBytes.getOrElse(TableMemory.defaultLimit))
    this.driverStore = if (options.isOnDriver) Some(DriverCheckpointStore.find()) else None
    this.schema = FamilySchema(
      StateStore.DEFAULT_COL_FAMILY_NAME, keyStateEncoderSpec, valueSchema, useMultipleValuesPerKey, isInternal = false)
    StoreMetrics.opened()
  }

  override def stateStoreId: StateStoreId = id

  override def getStore(
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore =
    taskReadStores.find().filterNot(_ => loadEmpty)
      .flatMap(upgraded(_, version, stateStoreCkptId, forceSnapshotOnCommit))
      .getOrElse(loading(version)(openStore(version, stateStoreCkptId, None, forceSnapshotOnCommit, loadEmpty)))

  override def getReadStore(version: Long, stateStoreCkptId: Option[String]): CheckpointReadStateStore =
    loading(version)(openReadStore(version, stateStoreCkptId, None))

  private[statestore] def openStore(
      version: Long,
      stateStoreCkptId: Option[String],
      from: Option[ReplayStart],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore = {
    val counters = new StoreCounters
    var store: CheckpointStateStore = null
    def hold(state: LoadedState): Unit = {
      store = new CheckpointStateStore(
        this, state, version, stateStoreCkptId, forceSnapshotOnCommit, counters)
      state.write(store)
      writers.add(store)
    }
    if (loadEmpty) synchronized(holdLoaded(loader.empty(version), hold))
    else acquire(version, stateStoreCkptId, from, counters, forWriting = true, hold)
    Option(TaskContext.get()).foreach(store.watch)
    store
  }

  private[statestore] def openReadStore(
      version: Long, stateStoreCkptId: Option[String], from: Option[ReplayStart]): CheckpointReadStateStore = {
    val counters = new StoreCounters
    var store: CheckpointReadStateStore = null
    acquire(version, stateStoreCkptId, from, counters, forWriting = false, state => {
      store = new CheckpointReadStateStore(this, state, version, stateStoreCkptId, counters)
      state.read(store)
    })
    val opened = store
    Option(TaskContext.get()).foreach(_.addTaskCompletionListener[Unit](_ => opened.end()))
    taskReadStores.add(opened)
    opened
  }

  override def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore,
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean): StateStore =
    // Spark passes the read store that the task opened last, which may be another operator's.
    upgraded(readStore, version, stateStoreCkptId, forceSnapshotOnCommit)
      .getOrElse(getStore(version, stateStoreCkptId, forceSnapshotOnCommit, loadEmpty = false))

  // Turns the holder of the state from a read store into a write store, if it reads this version of this state.
  private def upgraded(
      readStore: ReadStateStore,
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean): Option[StateStore] = {
    val writer = readStore match {
      case reader: CheckpointReadStateStore
        if reader.isOf(this) && reader.version == version && reader.checkpointId == stateStoreCkptId =>
        awaitEarlierRuns()
        synchronized {
          val shared = reader.sharedContent
          if (!closed && shared.canUpgrade(reader)) {
            val store = new CheckpointStateStore(
              this, shared, version, stateStoreCkptId, forceSnapshotOnCommit, reader.counters)
            shared.upgrade(store)
            writers.add(store)
            Some(store)
          } else {
            None
          }
        }
      case _ => None
    }
    writer.foreach(store => Option(TaskContext.get()).foreach(store.watch))
    writer
  }

  override def close(): Unit = synchronized {
    if (schema != null && !closed) StoreMetrics.closed()
    closed = true
    replaceContent(null)
    if (id != null && !isPrepared) StoreMetrics.forget(operator)
    ClosedStores.closed(instance)
    HeapWatch.forget(this)
  }

  override def doMaintenance(): Unit = {
    doSnapshotMaintenance()
    doCleanupMaintenance()
  }

  override def doSnapshotMaintenance(): Unit = maintenance.takeSnapshot(tick = true)

  override def doCleanupMaintenance(): Unit = maintenance.cleanUp()

  override def supportedCustomMetrics: Seq[StateStoreCustomMetric] = StoreMetrics.supported

  override def toString: String = if (id == null) "a state store that is not initialised" else described

  // Each commit passes it on.
  private lazy val described: String =
    s"state store operator ${id.operatorId}, partition ${id.partitionId}, store ${id.storeName} at " +
      id.storeCheckpointLocation()

  /** Loads a version, for another provider of the store to take. */
  private[statestore] def prepare(version: Long, ckptId: Option[String]): Unit = {
    isPrepared = true
    openReadStore(version, ckptId, None).end()
  }

  /** Gives the state in memory to the caller, and closes; None if there is none, or a task uses it. */
  private[statestore] def giveAway(): Option[LoadedState] = synchronized {
    val idle = Option(content).filter(_.isIdle)
    if (idle.isDefined) content = null
    close()
    idle
  }

  // Takes over the state that was loaded before the partition moved to this executor.
  private def adoptPrepared(): Unit = PreparedStates.take(id, kind.run).foreach { prepared =>
    synchronized {
      val isWanted = !closed && (content == null || content.isIdle && content.newest.version < prepared.newest.version)
      if (isWanted) replaceContent(prepared) else prepared.drop()
    }
  }

  /** The state in memory, null if there is none. To be called under the lock. */
  private[statestore] def inMemory: LoadedState = content

  private[statestore] def usesColumnFamilies: Boolean = kind.useColumnFamilies

  private[statestore] def isOnDriver: Boolean = driverStore.isDefined

  private[statestore] def newChangeReader(
      startVersion: Long, endVersion: Long, endId: Option[String], family: String): CheckpointChangeReader =
    new CheckpointChangeReader(id, conf, client, evolution, startVersion, endVersion, endId, family)

  /** The column families as operators and readers declare them. */
  private[statestore] lazy val declared = new DeclaredFamilies(this, evolution)

  // Attempts at a version are published in the order in which they become the state in memory.
  private val committing = new ReentrantLock

  /** Commits the changes of the store, or hands the commit over; returns the new checkpoint id in format v2. */
  private[statestore] def commit(store: CheckpointStateStore, state: LoadedState): Option[String] = {
    committing.lockInterruptibly()
    try commitInTurn(store, state) finally committing.unlock()
  }

  private def commitInTurn(store: CheckpointStateStore, state: LoadedState): Option[String] = {
    val attemptId = StoreCommit.newAttempt()
    val newId = if (conf.enableStateStoreCheckpointIds) Some(attemptId) else None
    val commit = settled {
      requireCurrent(store, state)
      val isFull = maintenance.isFull(state, store.forceSnapshot)
      new StoreCommit(
        client, store.version + 1, attemptId, newId, state.newest, state.pendingSnapshot, isFull,
        if (isFull) state.liveBytes else state.changedBytes(state.newest),
        state.families.map(family => (family, family.snapshot())).toSeq,
        conf.minVersionsToRetain, if (isFull) None else state.knownSince, toString)
    }
    store.counters.roundTrips += 1
    val byBatch = commitsByBatch
    if (byBatch && CommitCollector.isLocal) {
      handOver(store, state, commit)
    } else {
      val reply = if (byBatch) Handover.publish(commitLog, kind.run, id, commit) else commit.publish(Publication.Alone)
      published(state, commit, addVersion(store, state, commit), reply)
      store.counters.take(reply, commit.version)
    }
    reports.committed(commit.version)
    newId
  }

  // The task goes on while another thread publishes. Each later use of the state waits for its end.
  private def handOver(store: CheckpointStateStore, state: LoadedState, commit: StoreCommit): Unit = {
    lastReply.foreach { case (version, reply) => store.counters.take(reply, version) }
    if (pending != null && pending.version < commit.version && !pending.isAcknowledged && pending.failure.isEmpty) {
      throw CommitCollector.skippedBarrier(pending.version, toString)
    }
    synchronized {
      val version = addVersion(store, state, commit)
      pending = new PendingCommit(
        kind.run, id, commit,
        reply => {
          published(state, commit, version, reply)
          lastReply = Some((commit.version, reply))
        },
        // The version is in memory alone.
        () => synchronized(if (content eq state) replaceContent(null)),
        state.leaseInBackground())
    }
    CommitCollector.submit(commitLog, pending)
  }

  private def addVersion(store: CheckpointStateStore, state: LoadedState, commit: StoreCommit): CommittedVersion =
    synchronized {
      requireCurrent(store, state)
      val version = state.committed(commit.version, commit.id)
      if (!(content eq state) && isPreferred(state)) {
        replaceContent(state)
        state.keep()
      }
      version
    }

  // Of several attempts at a version, the next batch starts from the one that Spark accepts: with ids the first one that it is
  // told of, without them the last one published.
  private def isPreferred(state: LoadedState): Boolean =
    content == null || !conf.enableStateStoreCheckpointIds || content.newest.version < state.newest.version

  private def published(
      state: LoadedState, commit: StoreCommit, version: CommittedVersion, reply: CommitReply): Unit = {
    val due = synchronized {
      // The snapshot was used by this commit, or is now too old to be.
      if (commit.base.exists(sent => state.pendingSnapshot.exists(_ eq sent))) state.pendingSnapshot = None
      state.published(version, reply.stored)
      maintenance.isDueInBackground(state)
    }
    reports.snapshot(reply.stored.baseVersion)
    if (due) Background.submit(() => maintenance.takeSnapshot(tick = false))
  }

  // Runs a body that may change the state, under the lock while no commit of this provider is pending. A task that is
  // killed meanwhile does not wait.
  private def settled[T](body: => T): T = {
    var result: Option[T] = None
    while (result.isEmpty) {
      val running = synchronized {
        if (pending == null || pending.release()) result = Some(body)
        pending
      }
      if (result.isEmpty) running.await()
    }
    result.get
  }

  private[statestore] def abort(store: CheckpointStateStore, state: LoadedState, isQuiet: Boolean): Unit = synchronized {
    writers.remove(store)
    def undo(): Unit = if (isQuiet) state.rollback() else throw EndedStoreException.inUse(store.version, toString)
    if (state.isWriter(store)) {
      try if (content eq state) orDropped(undo()) else undo() finally state.release(store)
    }
  }

  private[statestore] def release(state: LoadedState, holder: AnyRef): Unit = synchronized {
    writers.remove(holder)
    state.release(holder)
  }

  /**
   * Drops the version of a task that failed after its commit: another attempt may commit the same version.
   * In format v2 ids distinguish the two; in v1 the next task must load the version from storage.
   */
  private[statestore] def invalidate(state: LoadedState, version: Long): Unit = synchronized {
    // The next store that is opened returns to an earlier version: a pending commit may still read the log.
    if (!conf.enableStateStoreCheckpointIds) state.useUntil(version)
  }

  private[statestore] def measure(state: LoadedState, counters: StoreCounters, version: Long): StateStoreMetrics = {
    HeapWatch.record(this, state.numKeys)
    val stored = synchronized(state.newestStored)
    val custom = StoreMetrics.values(counters, state.numKeys, stored, version, client.backend, StoreMetrics.isFirst(operator, version))
    // Without Spark's metric of each partition's last snapshot, of which each task would send a map.
    StateStoreMetrics(state.numKeys, state.memoryBytes, custom)
  }

  private lazy val commitLog: String = StoreLocation.commitLog(id)

  /** True if state is in other storage than local files. */
  private[statestore] lazy val isRemote: Boolean = StoreLocation.isRemote(id, options)

  // Whether the commits of the task that calls are published with those of its batch.
  private def commitsByBatch: Boolean =
    options.commitsByBatch.getOrElse(isRemote || CommitCollector.isLocal) && CommitCollector.isInBatch && {
      val waits = driverStore.isEmpty && CommitCollector.isAwaited(commitLog, kind.run, conf.enableStateStoreCheckpointIds)
      if (!waits && options.commitsByBatch.isDefined) throw CommitCollector.noBarrier(toString)
      waits
    }

  private lazy val operator: String = s"${kind.run}/${id.checkpointRootLocation}/${id.operatorId}"

  // Uses the state in memory if it has the version and is free, else loads the version. A store that finds the state
  // in use gets one of its own, and its present holder keeps it: several jobs or stages of a batch may use one partition.
  private def acquire(
      version: Long,
      ckptId: Option[String],
      from: Option[ReplayStart],
      counters: StoreCounters,
      forWriting: Boolean,
      hold: LoadedState => Unit): Unit = {
    val start = System.nanoTime()
    var earlier: Option[LoadedState] = None
    adoptPrepared()
    if (options.rebalances) StoreKind.opened(kind)
    if (forWriting) awaitEarlierRuns()
    val loads = loader
    val isInMemory = settled {
      requireNotClosed()
      // Spark has committed their version.
      writers.removeIf(_.version < version)
      val isFree = content != null && content.isIdle
      val usable = from.isEmpty && content != null && {
        if (isFree) orDropped(content.rewind(version, ckptId)) else !forWriting && content.canRead(version, ckptId)
      }
      if (usable) {
        if (isFree && orDropped(content.compactIfWanted())) counters.compactions += 1
        hold(content)
      } else if (isFree) {
        warnOfOtherAttempt(version, ckptId)
        // Any other state is freed before the load.
        if (from.isEmpty && orDropped(content.rewindBefore(version))) earlier = Some(content) else content.drop()
        content = null
      }
      usable
    }
    if (!isInMemory) {
      val loaded = if (version == 0) loads.empty(0L) else loads.load(version, ckptId, from, counters, earlier)
      synchronized {
        if (earlier.exists(_ eq loaded) && loaded.compactIfWanted()) counters.compactions += 1
        holdLoaded(loaded, hold)
      }
    }
    if (version == 0) client.backend.prestart()
    counters.loadNanos += System.nanoTime() - start
  }

  // What is in memory after a change of it has failed is unknown: the next task loads it.
  private def orDropped[T](change: => T): T = try change catch {
    case e: Throwable =>
      replaceContent(null)
      throw e
  }

  // Has a store hold a state that was loaded for it, which stays in memory unless another one is in use.
  private def holdLoaded(loaded: LoadedState, hold: LoadedState => Unit): Unit = {
    if (closed) loaded.drop()
    requireNotClosed()
    hold(loaded)
    HeapWatch.record(this, loaded.numKeys)
    if (content == null || content.isIdle) replaceContent(loaded) else loaded.drop()
  }

  // Another provider of the store, of a run that has ended, may have handed a commit over.
  private def awaitEarlierRuns(): Unit = CommitCollector.settle(commitLog, id)

  private def warnOfOtherAttempt(version: Long, ckptId: Option[String]): Unit = {
    val newest = content.newest
    if (!hasWarned && newest.version == version && newest.id != ckptId) {
      hasWarned = true
      logWarning(Errors.otherAttempt(version - 1, toString))
    }
  }

  /** Moves some rows of the state from the heap to files, if no task uses it; false if there are none to move. */
  private[statestore] def moveToFiles(): Boolean = synchronized(content != null && content.isIdle && content.moveToFiles())

  private def replaceContent(by: LoadedState): Unit = {
    if (content != null) content.drop()
    content = by
  }

  private def requireCurrent(store: CheckpointStateStore, state: LoadedState): Unit =
    if (closed || store.isKilled || !writers.contains(store) || !state.isWriter(store)) {
      throw EndedStoreException.notCommitted(store.version, toString)
    }

  private def requireNotClosed(): Unit =
    if (closed) {
      throw new IllegalStateException(s"the provider is closed; Spark opens a new one: $this")
    }

  private def newClient(): CheckpointClient = {
    val backend = Backend.of(PythonInterpreter.choose(options, hadoopConf))
    backend.logUse(options.destination(id.checkpointRootLocation))
    new CheckpointClient(backend, StoreLocation.describe(
      instance, id, options, hadoopConf, kind.run, conf.minDeltasForSnapshot), driverStore)
  }

  /** Runs a load, or a replay; converts its failures into Spark's, with their error condition. */
  private[statestore] def loading[T](version: Long, isReplay: Boolean = false)(body: => T): T = {
    if (version < 0) throw QueryExecutionErrors.unexpectedStateStoreVersion(version)
    try body catch {
      case e: java.nio.channels.ClosedByInterruptException => throw e
      case NonFatal(e) =>
        throw Errors.loadFailure(e, s"version $version of $this", if (isReplay) Some(getClass) else None)
    }
  }
}
