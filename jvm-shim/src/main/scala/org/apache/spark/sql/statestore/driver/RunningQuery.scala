package org.apache.spark.sql.statestore.driver

import java.util.UUID

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.classic
import org.apache.spark.sql.statestore.compat.Since41
import org.apache.spark.sql.statestore.compat.Since41.StreamExecution

/** The streaming query whose batch the calling thread plans. */
private[statestore] object RunningQuery {
  /** Returns the query whose thread calls. */
  def current(): Option[StreamExecution] = classic.SparkSession.getActiveSession.flatMap(of)

  /** Returns the query's id; None on the thread of a batch query. */
  def id(session: SparkSession): Option[String] = Option(session.sparkContext.getLocalProperty(Since41.QueryIdKey))

  /** Returns the query; None also for a session that is not of Spark's own kind. */
  def of(session: SparkSession): Option[StreamExecution] = session match {
    case classicSession: classic.SparkSession =>
      id(session).flatMap(queryId => Option(classicSession.sharedState.activeStreamingQueries.get(UUID.fromString(queryId))))
    case _ => None
  }
}
