package org.apache.spark.sql.statestore.driver

import java.util.{Collections, WeakHashMap}

import org.apache.spark.SPARK_VERSION
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.statestore.{InvalidOptionException, StateStoreExtensions}
import org.apache.spark.sql.statestore.compat.Since41
import org.apache.spark.sql.statestore.compat.Since41.StreamExecution

/**
 * Spark's checkpoint format, v1 or v2, of each query.
 *
 * Guarantees: a checkpoint that has a batch keeps its format, whatever the session has; where Spark does not let it, the query
 * is refused before its first batch. A new query of this store has the format that its session sets; if it sets none, v2 from
 * Spark 4.3 on, where every session can read it.
 */
private[statestore] object CheckpointFormat {
  private val Key = SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION.key
  private val ProviderKey = SQLConf.STATE_STORE_PROVIDER_CLASS.key

  // In 4.1 the data source reads format v2 only in a session that sets it. In 4.2 the commit log has the format of the session that
  // the query was started in, and not of the query's own copy.
  private val isDefaultV2 = !Seq("4.0.", "4.1.", "4.2.").exists(SPARK_VERSION.startsWith(_))
  private val isSettable = !SPARK_VERSION.startsWith("4.2.")

  private val verified = Collections.synchronizedMap(new WeakHashMap[StreamExecution, java.lang.Boolean])

  /** Sets the format in the settings of a query that has not read them yet. */
  def settle(query: StreamExecution, logs: QueryLogs): Unit = Since41.ownSession(query).filter(_ => isSettable).foreach { session =>
    val conf = session.conf
    if (logs.provider.orElse(conf.getOption(ProviderKey)).exists(StateStoreExtensions.isOurs)) {
      val ofNew = if (isDefaultV2 && !conf.getAll.contains(Key)) Some(2) else None
      logs.format.orElse(ofNew).foreach(version => conf.set(Key, version.toString))
      // `require` needs no other look at the storage.
      verified.put(query, true)
    }
  }

  /** True if a query goes on whose checkpoint is taken to v2 before its first batch. */
  def canBeV2(query: StreamExecution): Boolean =
    isDefaultV2 || query.sparkSession.conf.getOption(Key).contains("2")

  /**
   * Checks that a query has the format of its checkpoint. The storage is asked once for a run, and not if `settle` has.
   *
   * @throws InvalidOptionException  if not
   */
  def require(query: StreamExecution, conf: SQLConf): Unit = if (!verified.containsKey(query)) {
    val format = conf.getConf(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION)
    new QueryLogs(query).format.filter(_ != format).foreach { own =>
      throw new InvalidOptionException(
        s"the checkpoint at ${query.resolvedCheckpointRoot} has Spark's checkpoint format v$own, and '$Key' is $format in this " +
          s"session. Spark $SPARK_VERSION continues a query only in its own format: set it to $own before the query starts. " +
          "Nothing was changed.")
    }
    verified.put(query, true)
  }
}
