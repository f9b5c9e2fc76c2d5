package org.apache.spark.sql.statestore.driver

import org.apache.spark.SPARK_VERSION
import org.apache.spark.sql.statestore.{CheckpointStateStoreProvider, InvalidOptionException}
import org.apache.spark.sql.statestore.compat.Since41.StreamExecution
import org.apache.spark.sql.statestore.provider.BackendOptions

/** Sessions with the option `realTimeMode`, which Spark needs since 4.3. */
private[statestore] object RealTimeSessions {
  /** Fails: the option has no use. */
  def require(): Unit =
    throw new InvalidOptionException(
      s"'${BackendOptions.RealTimeMode}' is for Spark 4.3 and later, and this is Spark $SPARK_VERSION, where a " +
        "session's provider class does not prevent queries in real-time mode. Unset it, and set " +
        s"spark.sql.streaming.stateStore.providerClass to ${classOf[CheckpointStateStoreProvider].getName}.")

  def settle(query: StreamExecution): Unit = ()
}
