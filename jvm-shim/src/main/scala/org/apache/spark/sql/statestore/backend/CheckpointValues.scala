package org.apache.spark.sql.statestore.backend

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.statestore.arrow.{ChangeBatches, RecordSelection}
import org.apache.spark.sql.statestore.families.FamilySnapshot
import org.apache.spark.sql.statestore.table.{LocalCopy, LogScan, TableSnapshot}

/**
 * A version in storage: its handle, opaque to the shim, and what the backend plans next.
 *
 * @param bytes         the handle, one Arrow record batch message
 * @param attemptId     id of the commit attempt that wrote the version
 * @param chainLength   number of streams that a load reads: the base, and the runs and deltas on top of it
 * @param baseVersion   version of the newest full snapshot in the chain
 * @param versions      versions of the streams on top of it, oldest first; the changes of a stream begin after the
 *                      version of the one before
 */
private[statestore] final class StoredVersion(
    val bytes: Array[Byte],
    val attemptId: String,
    val chainLength: Int,
    val baseVersion: Long,
    val versions: Array[Long],
    val plan: SnapshotPlan)

/**
 * What a store does next with a version, as `SnapshotPlan` of spark_statestore/storage/snapshot_plan.py describes it.
 *
 * @param inlineUpTo       bytes of the largest state whose snapshots are in commits; those of larger ones are uploaded
 * @param fullUpTo         bytes of the largest state of which the next commit writes everything
 * @param upload           version since which changes are to be uploaded: 0 for a full snapshot, -1 for nothing
 * @param fullUpToAtTick   as `fullUpTo`, once Spark's maintenance calls
 * @param uploadAtTick     as `upload`, once Spark's maintenance calls
 */
private[statestore] final class SnapshotPlan(
    val inlineUpTo: Long, val fullUpTo: Long, val upload: Long, val fullUpToAtTick: Long, val uploadAtTick: Long)

/**
 * Handle of an uploaded full snapshot that a later commit uses as its base, or of a run for it to use.
 *
 * @param localCopy  where a copy of a full snapshot is wanted
 */
private[statestore] final class SnapshotHandle(
    val version: Long, val bytes: Array[Byte], val localCopy: Option[LocalCopyPlace])

/**
 * Place of a local copy.
 *
 * @param path      file on this host's disk
 * @param streamId  the full snapshot that it is a copy of
 */
private[statestore] final class LocalCopyPlace(val path: String, val streamId: String)

private[statestore] object LocalCopyPlace {
  /** Reads a place that an answer names; None if it names none. */
  def of(answer: JsonNode, field: String): Option[LocalCopyPlace] =
    if (answer.has(field)) Some(new LocalCopyPlace(answer.path(field).path("path").asText, answer.path(field).path("streamId").asText))
    else None
}

/** Cost of one commit: times in nanoseconds, sizes in bytes. */
private[statestore] final class CommitCost(
    val encodeNanos: Long,
    val sendNanos: Long,
    val storeNanos: Long,
    val bytes: Long,
    val objects: Long)

/** The way in which a commit becomes durable. */
private[statestore] sealed trait Publication

private[statestore] object Publication {
  /** In a file of its own, when `CheckpointClient.commit` returns. */
  case object Alone extends Publication

  /** In a merged file, when `CheckpointClient.publish` returns; a large commit as `Alone`. */
  case object Merged extends Publication

  /** As `Merged`, by the driver, which gets `CommitReply.metadata`. */
  case object HandedOver extends Publication
}

/**
 * @param isMerged  whether the version exists only once `CheckpointClient.publish` has returned
 * @param metadata  its metadata if the driver publishes or keeps it, else null
 */
private[statestore] final class CommitReply(
    val stored: StoredVersion, val cost: CommitCost, val isMerged: Boolean, val metadata: Array[Byte])

/**
 * A loaded version.
 *
 * @param bytesRead    from storage
 * @param usedCopy     whether its base came from a local copy
 * @param copyRequest  where a copy of its base is to be written, and the content of its families at the base
 */
private[statestore] final class LoadedVersion(
    val stored: StoredVersion, val bytesRead: Long, val usedCopy: Boolean,
    val copyRequest: Option[(LocalCopyPlace, Seq[TableSnapshot])])

/** The content of the tables before the streams of a load are applied to them. */
private[statestore] sealed trait LoadStart

private[statestore] object LoadStart {
  case object Nothing extends LoadStart

  final case class Copy(opened: LocalCopy) extends LoadStart

  /** The state in memory, which is at the version `after` of the load. */
  case object InMemory extends LoadStart
}

/** Version that a replay starts from. */
private[statestore] final class ReplayStart(val version: Long, val id: Option[String])

/**
 * The attempts that led to a version, oldest first.
 *
 * @param columnFamilies  the description of one column family in each of them, null where it has none
 * @param columnFamily    the newest of these
 */
private[statestore] final class Lineage(
    val attempts: Seq[String], val columnFamilies: Seq[JsonNode], val columnFamily: JsonNode)

/** One column family of a commit: its description and the records to send. */
private[statestore] final class FamilyChanges(
    val description: ObjectNode,
    val scan: () => LogScan,
    val selection: RecordSelection)

private[statestore] object FamilyChanges {
  /** Sends the changes of each family; returns the nanoseconds for which they were encoded. */
  def send(families: Seq[FamilyChanges], connection: BackendConnection, compressed: Boolean): Long = {
    var encodeNanos = 0L
    var index = 0
    families.foreach { family =>
      val batches = new ChangeBatches(family.scan, family.selection, compressed)
      var start = System.nanoTime()
      var batch = batches.next()
      encodeNanos += System.nanoTime() - start
      while (batch != null) {
        connection.send(index, batch)
        start = System.nanoTime()
        batch = batches.next()
        encodeNanos += System.nanoTime() - start
      }
      index += 1
    }
    encodeNanos
  }

  /** All rows that a family had at a version. */
  def whole(snapshot: FamilySnapshot): FamilyChanges =
    new FamilyChanges(
      snapshot.describe(), () => snapshot.family.table.scan(snapshot.content.view), RecordSelection.Live)

  /** The net changes from a tail of a family's log to a version. */
  def since(tail: Long, snapshot: FamilySnapshot): FamilyChanges = {
    val view = snapshot.content.view
    new FamilyChanges(snapshot.describe(), () => snapshot.family.table.scan(view, tail),
      new RecordSelection.Changes(_.existedAt(tail)))
  }
}
