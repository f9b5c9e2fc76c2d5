package org.apache.spark.sql.statestore

import java.util.{HashMap => JHashMap, Map => JMap}

import org.apache.hadoop.conf.Configuration

import org.apache.spark.{SparkThrowable, TaskContext, TaskContextImpl}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf

/**
 * Drives a real provider from Python tests, any class of one. One harness stands for one instance
 * of a provider, as an executor would hold it. Stores and iterators go by numbers that the test
 * chooses; a script is a list of operations, see HarnessScript.
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

  families.put(StateStore.DEFAULT_COL_FAMILY_NAME,
    new HarnessFamily(RowCodec.mapper.readTree(declaredDefault)))

  val provider: StateStoreProvider = {
    val sqlConf = new SQLConf
    confs.forEach((k, v) => sqlConf.setConfString(k, v))
    val hadoopConf = new Configuration
    val runId = java.util.UUID.randomUUID
    hadoopConf.set("sql.streaming.runId", runId.toString)
    val default = families.get(StateStore.DEFAULT_COL_FAMILY_NAME)
    val id = StateStoreProviderId(StateStoreId(checkpointRoot, operator, partition, storeName), runId)
    val created = StateStoreProvider.create(providerClass)
    created.init(id.storeId, default.keySchema, default.valueSchema, default.spec, useColumnFamilies,
      new StateStoreConf(sqlConf), hadoopConf, default.multiple, None)
    created
  }

  /** Runs a JSON array of operations up to the first that fails; a JSON array of their results. */
  def run(script: String): String = new HarnessScript(this).run(script)

  /** Whether a script is refused: the error's condition or else its class, and message; or null. */
  def refusal(script: String): String =
    try {
      run(script)
      null
    } catch {
      case error: Throwable =>
        val kind = error match {
          case known: SparkThrowable if known.getCondition != null => known.getCondition
          case _ => error.getClass.getSimpleName
        }
        RowCodec.mapper.writeValueAsString(Array(kind, String.valueOf(error.getMessage)))
    }

  /** Hands another harness's read store over, as Spark does with another operator's. */
  def upgradeFrom(owner: ProviderHarness, read: Int, store: Int, version: Long, id: String): Unit =
    stores.put(store, provider.upgradeReadStoreToWriteStore(
      owner.stores.get(read), version, Option(id), forceSnapshotOnCommit = false))

  /** What this thread does from now on, until the task ends, it does as a task. */
  def beginTask(): Unit = {
    task = TaskContext.empty()
    TaskContext.setTaskContext(task)
  }

  def endTask(): Unit = {
    task.markTaskCompleted(None)
    TaskContext.unset()
  }

  /** Aborts the stores that neither committed nor aborted, and releases the others. */
  def endStores(): Unit = stores.values.forEach {
    case store: StateStore => if (!store.hasCommitted) scala.util.Try(store.abort())
    case read => scala.util.Try(read.release())
  }

  def snapshotMaintenance(): Unit = provider.doSnapshotMaintenance()

  def cleanupMaintenance(): Unit = provider.doCleanupMaintenance()

  def close(): Unit = provider.close()
}

object ProviderHarness {

  /** The process id of the backend that a Python interpreter runs in this JVM, -1 if none does. */
  def backendPid(python: String): Long = io.Backend.of(python).pid
}
