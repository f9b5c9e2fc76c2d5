package org.apache.spark.sql.statestore.driver

import scala.util.control.NonFatal

import org.apache.spark.SparkConf
import org.apache.spark.internal.Logging
import org.apache.spark.scheduler.SparkListener
import org.apache.spark.status.{AppHistoryServerPlugin, ElementTrackingStore}
import org.apache.spark.status.KVUtils.KVIndexParam
import org.apache.spark.ui.SparkUI

/**
 * Adds the tab "State" to applications in Spark's history server, which finds this class through its jar's services. The figures come
 * from events that Spark logs, so the application itself may have run without the tab.
 *
 * An application whose events it cannot take has no tab, and is shown as it would be without this class.
 */
private[statestore] class StateHistoryServerPlugin extends AppHistoryServerPlugin with Logging {
  override def createListeners(conf: SparkConf, store: ElementTrackingStore): Seq[SparkListener] = {
    val monitor = new QueryMonitor
    // Once, at the end of the log: the store may be on a disk.
    store.onFlush(store.write(new HistoricQueries(HistoricQueries.Key, monitor.queries)))
    Seq(monitor)
  }

  override def setupUI(ui: SparkUI): Unit =
    try {
      val queries = ui.store.store.read(classOf[HistoricQueries], HistoricQueries.Key).queries
      if (queries.nonEmpty) new StateTab(ui, () => queries).attach()
    } catch {
      // The store's answer if it was filled before this class was there.
      case _: NoSuchElementException =>
      case NonFatal(e) => logWarning("the history of an application has no tab of state", e)
    }

  override def displayOrder: Int = 100
}

/** The queries of an application in the history server's store, which keeps it as JSON if it is on a disk. */
private[statestore] final class HistoricQueries(@KVIndexParam val key: String, val queries: Seq[MonitoredQuery])

private[statestore] object HistoricQueries {
  final val Key = "state"
}
