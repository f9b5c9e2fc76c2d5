package org.apache.spark.sql.statestore

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state.StateStoreConf
import org.apache.spark.sql.statestore.io.{CheckpointClient, NamedState, StoredVersion}

/**
 * What is done for a store besides its batches: full snapshots, and discarding versions that nobody
 * promised to keep.
 *
 * Guarantees: it never throws, since Spark closes a provider whose maintenance does; snapshots and
 * clean-ups of one store take turns; and it changes nothing that a task reads or writes.
 *
 * @param provider  whose lock guards what is in memory
 */
private[statestore] final class StoreMaintenance(
    provider: CheckpointStateStoreProvider, client: => CheckpointClient, conf: StateStoreConf, options: BackendOptions)
  extends Logging {

  // A cleanup must not meet half a snapshot.
  private val turns = new Object

  // Guarded by the provider.
  private var cleanedBelow = -1L

  /** Versions between full snapshots. */
  def snapshotInterval: Int = options.snapshotInterval(conf.minDeltasForSnapshot)

  /** Whether snapshots are taken here: memory storage keeps state inside metadata, which has no place for one. */
  def takesSnapshots: Boolean = !options.isMemory

  /** Writes a full snapshot of the newest version if one is due. */
  def takeSnapshot(tick: Boolean): Unit = quietly("a snapshot")(materialise(tick))

  /** Discards what is older than the versions to keep. */
  def cleanUp(): Unit = quietly("a cleanup")(turns.synchronized(discardOld()))

  /** Whether a snapshot is due; asked under the provider's lock. */
  def isDue(of: StoreContent, tick: Boolean): Boolean =
    takesSnapshots && of.materialising.isEmpty && of.pendingBase.isEmpty &&
      of.newest.stored.exists { stored =>
        SnapshotPolicy.dueInBackground(
          stored.chainLength, snapshotInterval, of.liveBytes, stored.baseBytes, stored.deltaBytes, tick)
      }

  private def materialise(tick: Boolean): Unit = {
    var of: StoreContent = null
    var mark: VersionMark = null
    provider.synchronized {
      val content = provider.inMemory
      if (content != null && isDue(content, tick)) {
        of = content
        mark = of.newest
        of.materialising = Some(mark.version)
      }
    }
    if (of != null) {
      try turns.synchronized {
        val base = client.materialise(mark.version, mark.families.map(NamedState.whole))
        // Still a version of this content's past: `rewind` does not go behind it meanwhile.
        provider.synchronized { of.pendingBase = Some(base) }
      } finally {
        provider.synchronized { of.materialising = None }
      }
    }
  }

  private def discardOld(): Unit = {
    var mark: VersionMark = null
    var below = -1L
    var unnamed = Long.MaxValue
    provider.synchronized {
      val content = provider.inMemory
      if (content != null) {
        mark = content.accepted
        // A snapshot that no metadata names yet would look like nobody's.
        unnamed = (content.materialising ++ content.pendingBase.map(_.version)).minOption.getOrElse(Long.MaxValue)
      }
      below = cleanedBelow
    }
    if (mark != null) {
      val horizon = math.min(unnamed, mark.version - options.numRetained(conf.minVersionsToRetain))
      // Deleting files costs requests, so that many go at once; the driver's memory is given back soon.
      val least = if (options.isKeptOnDriver) 1L else math.max(1L, conf.minVersionsToDelete)
      val enough = below < 0 || horizon - below >= least
      if (horizon > 0 && enough) mark.stored.foreach(stored => discardBefore(horizon, mark, stored))
    }
  }

  private def discardBefore(horizon: Long, mark: VersionMark, stored: StoredVersion): Unit = {
    val deleted = client.cleanup(
      mark.version, stored.attempt, mark.id, horizon, conf.maxVersionsToDeletePerMaintenance)
    provider.synchronized { cleanedBelow = horizon }
    logInfo(s"discarded $deleted objects of versions before $horizon of $provider")
  }

  private def quietly(what: String)(body: => Unit): Unit =
    try body catch {
      case NonFatal(e) => logWarning(s"$what in the background failed and will be tried again: $provider", e)
    }
}
