package org.apache.spark.sql.statestore

import java.lang.reflect.UndeclaredThrowableException
import java.util.{HashMap => JHashMap, Map => JMap}

import org.apache.hadoop.conf.Configuration

import org.apache.spark.{SparkThrowable, TaskContext, TaskContextImpl}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.statestore.backend.Backend
import org.apache.spark.sql.statestore.provider.{CommitCollector, StoreLocation}

/**
 * Harness of a real provider of any class, for tests in Python. One harness is one provider instance, as on
 * an executor. The test identifies stores and iterators by numbers; a script is a list of operations, see
 * HarnessScript.
 */
class ProviderHarness(
    providerClass: String,
    checkpointRoot: String,
    operator: Long,
    partition: Int,
    storeName: String,
    declaredDefault: String,
    useColumnFamilies: Boolean,
    confs: JMap[String, String]) {

  private[statestore] val families = new JHashMap[String, HarnessFamily]
  private[statestore] val stores = new JHashMap[Int, ReadStateStore]
  private[statestore] val iterators = new JHashMap[Int, HarnessIterator]
  private var task: TaskContextImpl = _
  private val runId = java.util.UUID.randomUUID
  private var handsOver = false
  private val schemas = new TestStateSchemaProvider
  private var recorded = 0

  families.put(StateStore.DEFAULT_COL_FAMILY_NAME,
    new HarnessFamily(RowCodec.mapper.readTree(declaredDefault)))

  val provider: StateStoreProvider = {
    val sqlConf = new SQLConf
    confs.forEach((k, v) => sqlConf.setConfString(k, v))
    val hadoopConf = new Configuration
    hadoopConf.set("sql.streaming.runId", runId.toString)
    val default = families.get(StateStore.DEFAULT_COL_FAMILY_NAME)
    val id = StateStoreProviderId(StateStoreId(checkpointRoot, operator, partition, storeName), runId)
    val created = StateStoreProvider.create(providerClass)
    val storeConf = new StateStoreConf(sqlConf)
    val recordedSchemas = if (storeConf.stateStoreEncodingFormat == "avro") Some(schemas) else None
    created.init(id.storeId, default.keySchema, default.valueSchema, default.spec, useColumnFamilies,
      storeConf, hadoopConf, default.multiple, recordedSchemas)
    created
  }

  /** Records the schema of a column family's values as the newest one, as Spark does when it has checked it. */
  private[statestore] def record(name: String, family: HarnessFamily): Unit = {
    schemas.captureSchema(name, family.keySchema, family.valueSchema, 0, recorded.toShort)
    recorded += 1
  }

  /** Runs a JSON array of operations up to the first failure; returns a JSON array of their results. */
  def run(script: String): String =
    // The proxies of Newest cannot throw Spark's checked exceptions as they are.
    try new HarnessScript(this).run(script) catch {
      case e: UndeclaredThrowableException => throw e.getCause
    }

  /** Runs a script that may fail; returns the error's condition, or else its class, and its message; or null. */
  def refusal(script: String): String =
    try {
      run(script)
      null
    } catch {
      case error: Throwable =>
        val kind = error match {
          case throwable: SparkThrowable if throwable.getCondition != null => throwable.getCondition
          case _ => error.getClass.getSimpleName
        }
        RowCodec.mapper.writeValueAsString(Array(kind, String.valueOf(error.getMessage)))
    }

  /** Upgrades another harness's read store, as Spark may do with another operator's. */
  def upgradeFrom(owner: ProviderHarness, readStoreId: Int, store: Int, version: Long, id: String): Unit =
    stores.put(store, Newest.provider(provider).upgradeReadStoreToWriteStore(
      owner.stores.get(readStoreId), version, Option(id), forceSnapshotOnCommit = false))

  /** Sets a task context for this thread, until `endTask`. */
  def beginTask(): Unit = {
    task = TaskContext.empty()
    if (handsOver) task.getLocalProperties.setProperty("streaming.sql.batchId", "0")
    TaskContext.setTaskContext(task)
  }

  /** Kills the task of this thread, as the driver does. */
  def killTask(): Unit = task.markInterrupted("killed by a test")

  def endTask(failed: Boolean): Unit = {
    if (failed) task.markTaskFailed(new IllegalStateException("failed by a test"))
    task.markTaskCompleted(None)
    TaskContext.unset()
  }

  /** Begins a run of a query, the tasks of which hand their commits over to `barrier`. */
  def beginRun(): Unit = {
    ProviderHarness.announce(StoreLocation.commitLog(provider.stateStoreId), runId.toString)
    handsOver = true
  }

  /** Begins to publish the commits of a batch, as while Spark's log of offsets gets it in real-time mode. */
  def prepareBarrier(): Unit = CommitCollector.prepareBarrier(StoreLocation.commitLog(provider.stateStoreId))

  /** Waits for the commits of a batch, as before Spark's commit log gets it. */
  def barrier(): Unit = CommitCollector.barrier(StoreLocation.commitLog(provider.stateStoreId))

  def endRun(): Unit = CommitCollector.ended(runId.toString)

  /** Aborts the stores that neither committed nor aborted, and releases the others. */
  def endStores(): Unit = stores.values.forEach {
    case store: StateStore => if (!store.hasCommitted) scala.util.Try(store.abort())
    case readStore => scala.util.Try(Newest.reading(readStore).release())
  }

  /** Runs maintenance after what the last commits began in the background, as an upload that is due already. */
  def snapshotMaintenance(): Unit = {
    BackgroundWork.awaitUploads()
    Newest.provider(provider).doSnapshotMaintenance()
  }

  /** Has local copies of this JVM wait until the latch that it returns is counted down. */
  def holdCopies(): java.util.concurrent.CountDownLatch = BackgroundWork.holdCopies()

  /** Waits for what providers of this JVM do in the background. */
  def awaitBackground(): Unit = BackgroundWork.await()

  def cleanupMaintenance(): Unit = Newest.provider(provider).doCleanupMaintenance()

  def close(): Unit = provider.close()
}

object ProviderHarness {

  /** Announces a run that goes on, as a query's log of offsets does. */
  def announce(log: String, run: String): Unit = CommitCollector.announce(log, run, () => true)

  /** Number of exchanges with the backend of an interpreter. */
  def backendRoundTrips(python: String): Long = Backend.of(python).roundTrips.sum

  /** Returns the process id of this JVM's backend for a Python interpreter, -1 if there is none. */
  def backendPid(python: String): Long = Backend.of(python).pid
}
