package org.apache.spark.sql.statestore.driver

import org.apache.spark.sql.{SparkSession, classic}
import org.apache.spark.sql.execution.streaming.runtime.StreamingQueryWrapper
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.statestore.CheckpointStateStoreProvider
import org.apache.spark.sql.streaming.StreamingQueryListener

/**
 * Sessions with the option `realTimeMode`, whose queries keep their state in this store although the session
 * does not set a provider class: Spark refuses to start a query in real-time mode in a session that sets any
 * class but that of its RocksDB provider.
 *
 * The check reads the session. The state stores are opened with the class in the query's own copy of the
 * session, which exists once the query is started. Spark sets the class there only if none is set, and writes
 * it to the offset log, from which a restart takes it.
 */
private[statestore] object RealTimeSessions {
  /** Sets the provider class of the queries that the session starts from now on. */
  def prepare(session: SparkSession): Unit = session match {
    case known: classic.SparkSession => synchronized {
      if (!known.streams.listListeners().exists(_.isInstanceOf[ProviderSetter])) {
        known.streams.addListener(new ProviderSetter(known))
      }
    }
    case _ =>
  }

  // Spark calls it on the query's thread, before the query reads its settings.
  private final class ProviderSetter(session: classic.SparkSession) extends StreamingQueryListener {
    override def onQueryStarted(event: StreamingQueryListener.QueryStartedEvent): Unit =
      session.streams.get(event.id) match {
        case query: StreamingQueryWrapper if query.runId == event.runId =>
          val conf = query.streamingQuery.sparkSessionForStream.conf
          val key = SQLConf.STATE_STORE_PROVIDER_CLASS.key
          if (!conf.getAll.contains(key)) conf.set(key, classOf[CheckpointStateStoreProvider].getName)
        case _ =>
      }

    override def onQueryProgress(event: StreamingQueryListener.QueryProgressEvent): Unit = ()

    override def onQueryTerminated(event: StreamingQueryListener.QueryTerminatedEvent): Unit = ()
  }
}
