package org.apache.spark.sql.statestore.provider

import java.util.concurrent.{ConcurrentHashMap, TimeUnit}

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.statestore.CheckpointStateStoreProvider
import org.apache.spark.util.ThreadUtils

/**
 * States that this executor has loaded before their partitions move to it. The task that opens a store first takes its state.
 *
 * Guarantees: a state that is not taken is freed after some minutes, or when its store is prepared again. Thread-safe.
 */
private[statestore] object PreparedStates extends Logging {
  // A query that has a batch less often loads its state when it moves.
  private final val Seconds = 300L

  // By store and run.
  private val prepared = new ConcurrentHashMap[(StateStoreId, String), CheckpointStateStoreProvider]

  private lazy val timer = ThreadUtils.newDaemonSingleThreadScheduledExecutor("state-store-prepared")

  /** Returns the state of a store that was prepared for a run, and forgets it. */
  def take(id: StateStoreId, run: String): Option[LoadedState] =
    if (prepared.isEmpty) None else Option(prepared.remove((id, run))).flatMap(_.giveAway())

  /**
   * Loads the stores of one partition.
   *
   * @param hadoopConf  of the session
   * @return            whether all of them are in memory
   */
  def prepare(stores: Seq[PreparedStore], hadoopConf: Configuration): Boolean = stores.forall(load(_, hadoopConf))

  private def load(store: PreparedStore, hadoopConf: Configuration): Boolean = {
    val kind = store.kind
    val conf = new Configuration(hadoopConf)
    conf.set("sql.streaming.runId", kind.run)
    val provider = new CheckpointStateStoreProvider
    try {
      provider.init(
        kind.id(store.partition), kind.keySchema, kind.valueSchema, kind.keyStateEncoderSpec, kind.useColumnFamilies, kind.conf, conf,
        kind.useMultipleValuesPerKey, kind.stateSchemaProvider)
      provider.prepare(store.version, store.id)
      keep((provider.stateStoreId, kind.run), provider)
      true
    } catch {
      case e: Throwable =>
        provider.close()
        if (!NonFatal(e)) throw e
        logInfo(s"$provider is not loaded before it moves to this executor: $e")
        false
    }
  }

  private def keep(key: (StateStoreId, String), provider: CheckpointStateStoreProvider): Unit = {
    Option(prepared.put(key, provider)).foreach(_.close())
    timer.schedule((() => if (prepared.remove(key, provider)) provider.close()): Runnable, Seconds, TimeUnit.SECONDS)
  }
}

/**
 * A store to load ahead of its move.
 *
 * @param version  the committed version that the present batch starts from
 * @param id       its checkpoint id in format v2
 */
private[statestore] final case class PreparedStore(kind: StoreKind, partition: Int, version: Long, id: Option[String])
