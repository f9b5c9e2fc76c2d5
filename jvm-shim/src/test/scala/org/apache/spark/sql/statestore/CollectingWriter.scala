package org.apache.spark.sql.statestore

import java.util.concurrent.{ConcurrentHashMap, ConcurrentLinkedQueue}

import org.apache.spark.sql.{ForeachWriter, Row}

/** Sink of a local session that makes each row available as soon as the query emits it. */
class CollectingWriter(name: String) extends ForeachWriter[Row] {
  override def open(partitionId: Long, epochId: Long): Boolean = true

  override def process(row: Row): Unit = CollectingWriter.queue(name).add(row.mkString(","))

  override def close(error: Throwable): Unit = ()
}

object CollectingWriter {
  private val queues = new ConcurrentHashMap[String, ConcurrentLinkedQueue[String]]

  private def queue(name: String): ConcurrentLinkedQueue[String] =
    queues.computeIfAbsent(name, _ => new ConcurrentLinkedQueue[String])

  /** Returns all rows emitted so far, one in each line. */
  def rows(name: String): String = String.join("\n", queue(name))
}
