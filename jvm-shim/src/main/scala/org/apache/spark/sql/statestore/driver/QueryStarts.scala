package org.apache.spark.sql.statestore.driver

import org.apache.spark.sql.{SparkSession, classic}
import org.apache.spark.sql.streaming.StreamingQueryListener

/**
 * Sets what a query needs in its own copy of the session, so that queries of one session have settings of their own.
 *
 * Spark makes the copy when the query is started, and calls a listener on the query's thread before it reads the copy.
 */
private[statestore] object QueryStarts {
  /** Attends to the queries that a session starts from now on. */
  def attend(session: SparkSession): Unit = session match {
    case classicSession: classic.SparkSession => synchronized {
      val streams = classicSession.streams
      if (!streams.listListeners().exists(_.isInstanceOf[Attendant])) streams.addListener(new Attendant(classicSession))
    }
    case _ =>
  }

  private final class Attendant(session: classic.SparkSession) extends StreamingQueryListener {
    override def onQueryStarted(event: StreamingQueryListener.QueryStartedEvent): Unit = {
      val query = session.sharedState.activeStreamingQueries.get(event.id)
      if (query != null && query.runId == event.runId) {
        RealTimeSessions.settle(query)
        CheckpointFormat.settle(query, StatePartitions.settle(query))
      }
    }

    override def onQueryProgress(event: StreamingQueryListener.QueryProgressEvent): Unit = ()

    override def onQueryTerminated(event: StreamingQueryListener.QueryTerminatedEvent): Unit = ()
  }
}
