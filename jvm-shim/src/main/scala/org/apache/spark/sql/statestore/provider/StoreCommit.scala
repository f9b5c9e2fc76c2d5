package org.apache.spark.sql.statestore.provider

import scala.util.control.NonFatal

import org.apache.spark.sql.errors.QueryExecutionErrors
import org.apache.spark.sql.statestore.{BackendException, Errors}
import org.apache.spark.sql.statestore.backend.{CheckpointClient, CommitReply, CommitRequest, FamilyChanges, Publication,
  SnapshotHandle}
import org.apache.spark.sql.statestore.families.{ColumnFamily, FamilySnapshot}

/**
 * One attempt to commit a version of a store, with the state as it was when its task committed.
 *
 * Guarantees: `publish` may run on any thread, as long as the log is not truncated meanwhile. A version that
 * it returns is durable and can be loaded on any executor, unless it is merged: then it is once the query's merged
 * files are published, by this process or the driver's. If it fails, the attempt is part of no version.
 *
 * @param id        checkpoint id of the version, in format v2
 * @param parent    the version that it changes
 * @param base      an uploaded snapshot that it starts from, or a run that it uses
 * @param isFull    whether it writes everything rather than the changes
 * @param bytes     bytes of log records that it writes, at most
 * @param retained    number of versions before the newest that other executors retain
 * @param knownSince  oldest version since which all changes are in memory
 * @param store       names the store in messages
 */
private[statestore] final class StoreCommit(
    val client: CheckpointClient,
    val version: Long,
    val attemptId: String,
    val id: Option[String],
    parent: CommittedVersion,
    val base: Option[SnapshotHandle],
    private val isFull: Boolean,
    val bytes: Long,
    families: Seq[(ColumnFamily, FamilySnapshot)],
    retained: Int,
    knownSince: Option[Long],
    store: String) {

  def publish(by: Publication): CommitReply =
    try {
      try client.commit(request(isFull, by)) catch {
        // The driver has lost the parent; the table has the whole state.
        case e: BackendException if e.kind == "StateLostError" && !isFull =>
          client.commit(request(everything = true, by))
      }
    } catch {
      case e: java.nio.channels.ClosedByInterruptException => throw e
      case e: InterruptedException => throw e
      case NonFatal(e) =>
        throw QueryExecutionErrors.failedToCommitStateFileError(
          // Spark ends this with a full stop.
          s"version $version of $store: ${Errors.clause(e)}", e)
    }

  /** Bytes of the handle that it sends, which are about those that it gets back. */
  def handleBytes: Int = parent.stored.fold(0)(_.bytes.length) + base.fold(0)(_.bytes.length)

  private def request(everything: Boolean, by: Publication): CommitRequest =
    client.newCommit(
      version, attemptId, id.isDefined,
      if (everything) None else parent.stored,
      parent.stored.map(_.attemptId),
      if (everything) None else base,
      version - 1 - retained,
      if (everything) None else knownSince,
      families.map { case (family, snapshot) => changes(family, snapshot, everything) },
      by)

  private def changes(family: ColumnFamily, snapshot: FamilySnapshot, everything: Boolean): FamilyChanges =
    if (everything) {
      FamilyChanges.whole(snapshot)
    } else {
      FamilyChanges.since(parent.tailOf(family), snapshot)
    }
}

private[statestore] object StoreCommit {
  private val random = new java.security.SecureRandom

  /** Returns 64 random bits in hex: the id of a commit attempt, and the checkpoint id in format v2. */
  def newAttempt(): String = {
    val bytes = new Array[Byte](8)
    random.nextBytes(bytes)
    java.util.HexFormat.of().formatHex(bytes)
  }

  /** Publishes small commits of one backend, see `CheckpointClient.commitTogether`. */
  def publishTogether(commits: Seq[StoreCommit]): Array[CommitReply] =
    CheckpointClient.commitTogether(commits.map(commit => commit.request(commit.isFull, Publication.Merged)))
}
