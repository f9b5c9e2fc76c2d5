package org.apache.spark.sql.statestore.driver

import java.util.UUID

import scala.collection.mutable

import com.codahale.metrics.{Gauge, MetricRegistry}

import org.apache.spark.sql.statestore.provider.StoreMetrics

/**
 * Registers the figures of active queries with Spark's metrics system, as gauges: `query.<name>.batchDurationMs`, and for each
 * stateful operator `query.<name>.operator0.numRowsTotal` and the like. They are as many as `QueryMonitor` has queries, and are
 * removed when a query ends.
 */
private[statestore] final class QueryMetrics(registry: MetricRegistry, monitor: QueryMonitor) {
  import QueryMetrics._

  // Only the thread of Spark's listeners changes it.
  private val prefixes = mutable.HashMap.empty[UUID, String]

  // Spark registers a plugin's metrics only if there is one at its start.
  registry.register("activeQueries", gauge(monitor.queries.count(_.isActive).toLong))

  def add(query: MonitoredQuery): Unit = {
    val prefix = prefixes.getOrElseUpdate(query.id, {
      val named = s"query.${query.title.replaceAll("[^A-Za-z0-9_-]", "_")}"
      if (prefixes.values.exists(_ == named)) s"query.${query.id}" else named
    })
    add(s"$prefix.batchId", query.id)(_.last.map(_.batchId))
    add(s"$prefix.batchDurationMs", query.id)(_.last.map(_.durationMs))
    add(s"$prefix.commitLogMs", query.id)(_.last.map(_.commitLogMs))
    add(s"$prefix.uncommittedAgeMs", query.id)(_.uncommittedAgeMs)
    add(s"$prefix.mergedLogicalFiles", query.id)(_.merged.map(_.logicalFiles))
    add(s"$prefix.mergedPhysicalFiles", query.id)(_.merged.map(_.physicalFiles))
    add(s"$prefix.mergedLiveBytes", query.id)(_.merged.map(_.liveBytes))
    add(s"$prefix.mergedStorageBytes", query.id)(_.merged.map(_.storageBytes))
    add(s"$prefix.${StoreMetrics.Restarts.name}", query.id)(current => Some(current.restarts))
    add(s"$prefix.${StoreMetrics.StorageRetries.name}", query.id)(current => Some(current.retries))
    add(s"$prefix.${StoreMetrics.StreamsRepaired.name}", query.id)(current => Some(current.repaired))
    for {
      last <- query.last.toSeq
      (operator, number) <- last.operators.zipWithIndex
      name <- Exported if operator.values.contains(name)
    } add(s"$prefix.operator$number.$name", query.id)(
      _.last.flatMap(_.operators.lift(number)).flatMap(_(name)))
  }

  def remove(query: UUID): Unit = prefixes.remove(query).foreach { prefix =>
    registry.removeMatching((name, _) => name.startsWith(s"$prefix."))
  }

  private def add(name: String, query: UUID)(value: MonitoredQuery => Option[Long]): Unit =
    if (!registry.getMetrics.containsKey(name)) {
      registry.register(name, gauge(monitor.find(query).flatMap(value).getOrElse(0L)))
    }

  private def gauge(value: => Long): Gauge[Long] = () => value
}

private object QueryMetrics {
  // These are sums over batches, of a query.
  private val Exported: Seq[String] =
    Seq(QueryMonitor.RowsTotal, QueryMonitor.RowsUpdated, QueryMonitor.MemoryUsed, QueryMonitor.CommitTime) ++
      StoreMetrics.supported.map(_.name)
        .filterNot(Set(StoreMetrics.Restarts, StoreMetrics.StorageRetries, StoreMetrics.StreamsRepaired).map(_.name))
}
