package org.apache.spark.sql.statestore.provider

import java.util.UUID

import scala.util.control.NonFatal

import org.apache.spark.SparkEnv
import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.driver.CommitReportsRule

/**
 * Reports of one store to Spark's state store coordinator on the driver.
 *
 * Guarantees: every commit is reported before `commit` returns, which foreachBatch sinks demand, unless the query is known
 * to have no such sink. Snapshots are reported in the background and at most once for each `minDeltasForSnapshot`, since the
 * call waits for the driver; a report that fails changes nothing.
 */
private[statestore] final class CoordinatorReports(id: StateStoreId, runId: String, conf: StateStoreConf) extends Logging {
  import CoordinatorReports._

  private lazy val providerId = StateStoreProviderId(id, UUID.fromString(runId))

  private var reported = -1L

  def committed(version: Long): Unit =
    if (conf.commitValidationEnabled && runId.nonEmpty && CommitReportsRule.areWanted) {
      try coordinator().foreach(_.reportStateStoreCommit(providerId, version, id.storeName)) catch {
        case NonFatal(e) =>
          lastCoordinator = null
          // A sink that demands the report fails the batch.
          logWarning(s"could not report the commit of version $version of $id", e)
      }
    }

  /** Reports that the newest full snapshot of the store is of this version. */
  def snapshot(version: Long): Unit =
    if (conf.reportSnapshotUploadLag && runId.nonEmpty && (reported < 0 || version - reported >= conf.minDeltasForSnapshot)) {
      reported = version
      Background.submit { () =>
        try {
          coordinator().foreach(_.snapshotUploaded(providerId, version, System.currentTimeMillis()))
        } catch {
          case NonFatal(e) => logDebug(s"could not report the snapshot of version $version of $id", e)
        }
      }
    }
}

private object CoordinatorReports {
  private final class ApplicationCoordinator(val env: SparkEnv, val ref: StateStoreCoordinatorRef)

  @volatile private var lastCoordinator: ApplicationCoordinator = _

  /**
   * Returns the coordinator of the running application. In local mode another application may follow in the
   * same JVM, with another environment.
   */
  private def coordinator(): Option[StateStoreCoordinatorRef] = Option(SparkEnv.get).map { env =>
    val last = lastCoordinator
    if (last != null && (last.env eq env)) {
      last.ref
    } else {
      val ref = StateStoreCoordinatorRef.forExecutor(env)
      lastCoordinator = new ApplicationCoordinator(env, ref)
      ref
    }
  }
}
