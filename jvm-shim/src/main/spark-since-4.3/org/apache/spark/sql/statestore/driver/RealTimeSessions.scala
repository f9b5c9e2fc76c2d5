package org.apache.spark.sql.statestore.driver

import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.statestore.CheckpointStateStoreProvider
import org.apache.spark.sql.statestore.compat.Since41.StreamExecution
import org.apache.spark.sql.statestore.provider.BackendOptions

/**
 * Sessions with the option `realTimeMode`, whose queries keep their state in this store although the session
 * does not set a provider class: Spark refuses to start a query in real-time mode in a session that sets any
 * class but that of its RocksDB provider.
 *
 * Spark sets the class in the query's own copy of the session only if none is set, and writes it to the offset log, from
 * which a restart takes it.
 */
private[statestore] object RealTimeSessions {
  /** Fails where the option has no use. */
  def require(): Unit = ()

  /** Sets the provider class of a query that has not read its settings yet. */
  def settle(query: StreamExecution): Unit = {
    val conf = query.sparkSessionForStream.conf
    val key = SQLConf.STATE_STORE_PROVIDER_CLASS.key
    val settings = conf.getAll
    if (settings.get(BackendOptions.RealTimeMode).contains("true") && !settings.contains(key)) {
      conf.set(key, classOf[CheckpointStateStoreProvider].getName)
    }
  }
}
