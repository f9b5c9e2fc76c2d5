package org.apache.spark.sql.statestore.backend

import com.codahale.metrics.{Counter, Gauge, MetricRegistry}

import org.apache.spark.sql.statestore.provider.StoreMetrics
import org.apache.spark.sql.statestore.table.TableMemory

/**
 * Registers the figures of this JVM with Spark's metrics system: those of its backends and of the state in it. They have the names
 * of the custom metrics of a query, where there is one. Each is read from counters that exist anyway.
 */
private[statestore] object BackendMetrics {
  def register(registry: MetricRegistry): Unit = {
    registry.register(StoreMetrics.BackendMemory.name, gauge(Backend.sum(_.memoryBytes)))
    registry.register(StoreMetrics.RoundTrips.name, counter(Backend.sum(_.roundTrips.sum)))
    registry.register(StoreMetrics.Restarts.name, counter(Backend.sum(_.restarts.total)))
    registry.register(StoreMetrics.StorageRetries.name, counter(Backend.sum(_.storageRetries.total)))
    registry.register(StoreMetrics.StreamsRepaired.name, counter(Backend.sum(_.streamsRepaired.total)))
    registry.register("checkpointCommits", counter(Backend.sum(_.commits.sum)))
    registry.register(StoreMetrics.BytesWritten.name, counter(Backend.sum(_.bytesWritten.sum)))
    registry.register(StoreMetrics.ObjectsWritten.name, counter(Backend.sum(_.objectsWritten.sum)))
    registry.register(StoreMetrics.MappedBytes.name, gauge(TableMemory.mappedBytes))
    registry.register("openStores", gauge(StoreMetrics.openStores))
  }

  private def gauge(value: => Long): Gauge[Long] = () => value

  private def counter(value: => Long): Counter = new Counter {
    override def getCount: Long = value
  }
}

/** A counter of which each report takes what was added since the one before. */
private[statestore] final class ReportedCounter {
  private var added = 0L
  private var reported = 0L

  def add(value: Long): Unit = synchronized(added += value)

  def total: Long = synchronized(added)

  def take(): Long = synchronized {
    val since = added - reported
    reported = added
    since
  }
}
