package org.apache.spark.sql.statestore.provider

import org.apache.spark.sql.errors.QueryExecutionErrors
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.{CheckpointStateStoreProvider, UnsupportedFeatureException}
import org.apache.spark.sql.statestore.backend.ReplayStart
import org.apache.spark.sql.statestore.compat.NewestFineGrainedReplay

/**
 * Fine-grained replay for the state data source: a version rebuilt from an earlier one and the changes
 * since, and the changes themselves.
 *
 * Guarantees: every retained version is a valid start, and later snapshots are not read. A missing
 * version fails with Spark's error condition for it, and the message names the store and the version.
 */
private[statestore] trait CheckpointReplay extends NewestFineGrainedReplay {
  this: CheckpointStateStoreProvider =>

  override def replayStateFromSnapshot(
      snapshotVersion: Long,
      endVersion: Long,
      readOnly: Boolean,
      snapshotVersionStateStoreCkptId: Option[String],
      endVersionStateStoreCkptId: Option[String]): StateStore =
    if (readOnly) {
      replayReadStateFromSnapshot(
        snapshotVersion, endVersion, snapshotVersionStateStoreCkptId, endVersionStateStoreCkptId)
    } else {
      replaying(snapshotVersion, endVersion) {
        val from = new ReplayStart(snapshotVersion, snapshotVersionStateStoreCkptId)
        openStore(endVersion, endVersionStateStoreCkptId, Some(from), forceSnapshotOnCommit = false, loadEmpty = false)
      }
    }

  override def replayReadStateFromSnapshot(
      snapshotVersion: Long,
      endVersion: Long,
      snapshotVersionStateStoreCkptId: Option[String],
      endVersionStateStoreCkptId: Option[String]): CheckpointReadStateStore = replaying(snapshotVersion, endVersion) {
    val from = new ReplayStart(snapshotVersion, snapshotVersionStateStoreCkptId)
    openReadStore(endVersion, endVersionStateStoreCkptId, Some(from))
  }

  override def getStateStoreChangeDataReader(
      startVersion: Long,
      endVersion: Long,
      colFamilyNameOpt: Option[String],
      endVersionStateStoreCkptId: Option[String]): StateStoreChangeDataReader = replaying(startVersion, endVersion) {
    val family = colFamilyNameOpt.getOrElse(StateStore.DEFAULT_COL_FAMILY_NAME)
    newChangeReader(startVersion, endVersion, endVersionStateStoreCkptId, family)
  }

  private def replaying[T](from: Long, to: Long)(body: => T): T = {
    if (from < 1) throw QueryExecutionErrors.unexpectedStateStoreVersion(from)
    if (to < from) throw QueryExecutionErrors.unexpectedStateStoreVersion(to)
    loading(to, isReplay = true) {
      if (isOnDriver) {
        throw new UnsupportedFeatureException(
          s"the changes from version $from to $to are not available for state on the driver " +
            "(storage=memory without checkpointsDir), which keeps no history. Read a single version with the option " +
            s"batchId alone: $this")
      }
      body
    }
  }
}
