package org.apache.spark.sql.statestore

import java.util.UUID

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration

import org.apache.spark.SparkEnv
import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state._

/**
 * Tells Spark's state store coordinator on the driver what one store did.
 *
 * Guarantees: every commit is reported before `commit` returns, which foreachBatch sinks demand.
 * Snapshots are reported in the background and at most once for each snapshot interval, since the
 * call waits for the driver; a report that fails changes nothing.
 */
private[statestore] final class CoordinatorReports(
    id: StateStoreId, runId: String, conf: StateStoreConf, hadoopConf: Configuration, interval: Int)
  extends Logging {

  private var reported = -1L

  def committed(version: Long): Unit =
    if (conf.commitValidationEnabled) StateStore.reportCommitToCoordinator(version, id, hadoopConf)

  /** The store loads from a full snapshot of this version now. */
  def snapshot(version: Long): Unit =
    if (conf.reportSnapshotUploadLag && runId.nonEmpty && (reported < 0 || version - reported >= interval)) {
      reported = version
      Background.submit { () =>
        try {
          Option(SparkEnv.get).foreach { env =>
            StateStoreCoordinatorRef.forExecutor(env).snapshotUploaded(
              StateStoreProviderId(id, UUID.fromString(runId)), version, System.currentTimeMillis())
          }
        } catch {
          case NonFatal(e) => logDebug(s"could not report the snapshot of version $version of $id", e)
        }
      }
    }
}

/** Threads for what no task waits for, shared by all stores of this JVM. */
private[statestore] object Background {
  private lazy val executor = org.apache.spark.util.ThreadUtils.newDaemonFixedThreadPool(
    math.max(1, Runtime.getRuntime.availableProcessors() / 4), "state-store-background")

  def submit(task: () => Unit): Unit = executor.execute(() => task())
}
