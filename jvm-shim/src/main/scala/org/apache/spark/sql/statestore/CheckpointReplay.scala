package org.apache.spark.sql.statestore

import org.apache.spark.sql.errors.QueryExecutionErrors
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.io.ReplayStart

/**
 * What the state data source asks of a provider besides a version as it is: a version made of an
 * earlier one and the changes since, and the changes themselves.
 *
 * Guarantees: any version that is retained will do as a start, and what was written later to load
 * faster is not read. A version that is not there any more fails with the condition that Spark has
 * for it, and names the store and the version.
 */
private[statestore] trait CheckpointReplay extends SupportsFineGrainedReplay {
  this: CheckpointStateStoreProvider =>
  import CheckpointReplay._

  override def replayStateFromSnapshot(
      snapshotVersion: Long,
      endVersion: Long,
      readOnly: Boolean,
      snapshotVersionStateStoreCkptId: Option[String],
      endVersionStateStoreCkptId: Option[String]): StateStore =
    if (readOnly) {
      new ReadOnlyStateStore(replayReadStateFromSnapshot(
        snapshotVersion, endVersion, snapshotVersionStateStoreCkptId, endVersionStateStoreCkptId))
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
      endVersionStateStoreCkptId: Option[String]): ReadStateStore = replaying(snapshotVersion, endVersion) {
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
    loading(to, conditionOf) {
      if (isKeptOnDriver) {
        throw new UnsupportedFeatureException(
          s"what changed from version $from to $to cannot be read of state that is kept on the driver " +
            "(storage=memory without checkpointsDir), which has no files of its past. Read a version as it is, " +
            s"with the option batchId alone: $this")
      }
      body
    }
  }
}

private[statestore] object CheckpointReplay {
  private val MissingSnapshot = "CANNOT_LOAD_STATE_STORE.CANNOT_READ_MISSING_SNAPSHOT_FILE"

  private def conditionOf(failure: Throwable): Option[String] = failure match {
    case e: BackendException if e.kind == "CheckpointNotFoundError" => Some(MissingSnapshot)
    case _ => None
  }
}
