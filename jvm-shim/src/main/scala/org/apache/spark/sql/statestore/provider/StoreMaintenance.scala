package org.apache.spark.sql.statestore.provider

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state.StateStoreConf
import org.apache.spark.sql.statestore.CheckpointStateStoreProvider
import org.apache.spark.sql.statestore.backend.{CheckpointClient, FamilyChanges, LocalCopyPlace, SnapshotPlan, StoredVersion}
import org.apache.spark.sql.statestore.compat.Since41

/**
 * Background maintenance of a store: uploads full snapshots and runs, and discards versions that are neither
 * retained nor held.
 *
 * Guarantees: it never throws, since Spark closes a provider whose maintenance does; snapshots and
 * cleanups of one store exclude each other; it changes nothing that a task reads or writes.
 *
 * @param provider  its lock guards the state in memory
 */
private[statestore] final class StoreMaintenance(
    provider: CheckpointStateStoreProvider, client: => CheckpointClient, conf: StateStoreConf, options: BackendOptions)
  extends Logging {

  // A cleanup must not take the files of an unfinished snapshot for orphans.
  private val exclusive = new Object

  // Guarded by the provider.
  private var cleanedBelow = -1L

  /** Writes a full snapshot of the newest version, or a run, if one is due. */
  def takeSnapshot(tick: Boolean): Unit = quietly("a snapshot")(uploadSnapshot(tick))

  /** Discards versions older than the retained ones. */
  def cleanUp(): Unit = quietly("a cleanup")(exclusive.synchronized(discardOld()))

  /** True if a commit writes everything; to be called under the provider's lock. */
  def isFull(state: LoadedState, forced: Boolean): Boolean = {
    val liveBytes = state.liveBytes
    forced || liveBytes <= state.changedBytes(state.newest) || state.newest.stored.forall { stored =>
      liveBytes <= stored.plan.fullUpTo || state.snapshotOnCommit && liveBytes <= stored.plan.inlineUpTo
    }
  }

  /** True if a snapshot or run is to be uploaded; to be called under the provider's lock. */
  def isDueInBackground(state: LoadedState): Boolean = uploadOf(state, tick = false).isDefined

  // What the backend planned for the newest version, if it is in storage and no upload is in progress or waits for a commit.
  private def planOf(state: LoadedState): Option[SnapshotPlan] =
    if (state.isUsable && state.snapshotInProgress.isEmpty && state.pendingSnapshot.isEmpty) state.newest.stored.map(_.plan) else None

  // The version since which the changes are to be uploaded, 0 for a full snapshot. A run may be planned of changes that are
  // not known any more since a compaction.
  private def uploadOf(state: LoadedState, tick: Boolean): Option[Long] =
    planOf(state).filter(state.liveBytes > _.inlineUpTo).map(plan => if (tick) plan.uploadAtTick else plan.upload)
      .filter(since => since == 0L || since > 0L && state.knows(since))

  private def uploadSnapshot(tick: Boolean): Unit = {
    var state: LoadedState = null
    var version: CommittedVersion = null
    var since = 0L
    var changes = Seq.empty[FamilyChanges]
    var endLease: () => Unit = null
    provider.synchronized {
      val content = provider.inMemory
      if (content != null) {
        if (tick && planOf(content).exists(content.liveBytes <= _.fullUpToAtTick)) content.snapshotOnCommit = true
        uploadOf(content, tick).foreach { upload =>
          state = content
          endLease = content.leaseInBackground()
          version = state.newest
          since = upload
          changes = if (since == 0L) version.families.map(FamilyChanges.whole) else state.changesSince(since)
          state.snapshotInProgress = Some(version.version)
        }
      }
    }
    if (state != null) {
      try exclusive.synchronized {
        val base = client.uploadSnapshot(version.version, if (since == 0L) None else Some(since), changes)
        // The version is still valid: `rewind` refuses to go behind a snapshot in progress.
        provider.synchronized { state.pendingSnapshot = Some(base) }
        base.localCopy.foreach(copy(_, state, version))
      } finally {
        endLease()
        provider.synchronized { state.snapshotInProgress = None }
      }
    }
  }

  // Writes a local copy later, unless the version is rolled back before. While it is written, `rewind` refuses to go behind it.
  private def copy(place: LocalCopyPlace, state: LoadedState, version: CommittedVersion): Unit = {
    val rewinds = state.rewinds
    val endLease = state.leaseInBackground()
    def begin(): Boolean = provider.synchronized {
      val isValid = state.rewinds == rewinds
      if (isValid) state.copyInProgress = Some(version.version)
      isValid
    }
    def end(): Unit = {
      endLease()
      provider.synchronized { state.copyInProgress = None }
    }
    LocalCopies.write(place, version.families.map(_.copied), options.localRecoveryMaxBytes, () => begin(), () => end())
  }

  private def discardOld(): Unit = {
    var version: CommittedVersion = null
    var below = -1L
    var unpublished = Long.MaxValue
    provider.synchronized {
      val content = provider.inMemory
      if (content != null) {
        version = content.confirmed
        // A snapshot that no metadata names yet must not be discarded as an orphan.
        unpublished =
          (content.snapshotInProgress ++ content.pendingSnapshot.map(_.version)).minOption.getOrElse(Long.MaxValue)
      }
      below = cleanedBelow
    }
    if (version != null) {
      val horizon = math.min(unpublished, version.version - conf.minVersionsToRetain)
      // Deletions cost requests, so they are batched; memory of the driver is freed at once.
      val least = if (options.isOnDriver) 1L else math.max(1L, conf.minVersionsToDelete)
      val enough = below < 0 || horizon - below >= least
      if (horizon > 0 && enough) version.stored.foreach(stored => discardBefore(horizon, version, stored))
    }
  }

  private def discardBefore(horizon: Long, version: CommittedVersion, stored: StoredVersion): Unit = {
    val deleted = client.cleanup(
      version.version, stored.attemptId, version.id, horizon, Since41.maxVersionsToDelete(conf))
    provider.synchronized { cleanedBelow = horizon }
    logInfo(s"discarded $deleted objects of versions before $horizon of $provider")
  }

  private def quietly(activity: String)(body: => Unit): Unit =
    try body catch {
      case NonFatal(e) => logWarning(s"$activity in the background failed and will be retried: $provider", e)
    }
}
