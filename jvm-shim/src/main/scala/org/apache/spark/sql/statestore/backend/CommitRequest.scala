package org.apache.spark.sql.statestore.backend

/**
 * A request to publish a version, see `CheckpointClient.newCommit`.
 *
 * Guarantees: it may be sent again as long as no reply was read, since the backend counts a repeated one once.
 *
 * @param control      the request's control frame
 * @param compressed   whether changes are compressed
 * @param isOnDriver   whether the driver keeps the version's metadata
 */
private[statestore] final class CommitRequest(
    val client: CheckpointClient,
    val version: Long,
    val attemptId: String,
    val idInPath: Boolean,
    val parent: Option[StoredVersion],
    base: Option[SnapshotHandle],
    families: Seq[FamilyChanges],
    by: Publication,
    control: Array[Byte],
    compressed: Boolean,
    isOnDriver: Boolean) {

  private var encodeNanos = 0L
  private var sentAt = 0L

  /** Buffers the request and its changes; large changes are sent. */
  def sendTo(connection: BackendConnection): Unit = {
    connection.send(Frames.Control, control)
    parent.foreach(p => connection.send(Frames.Handle, p.bytes))
    base.foreach(b => connection.send(Frames.Handle, b.bytes))
    encodeNanos = FamilyChanges.send(families, connection, compressed)
    connection.endMessage()
    sentAt = System.nanoTime()
  }

  /**
   * Reads the answer.
   *
   * @param since  when the one to the request before was read, as of `System.nanoTime`
   */
  def readReply(connection: BackendConnection, since: Long = Long.MinValue): CommitReply = {
    val reply = Backend.answer(connection)
    val waited = System.nanoTime() - math.max(sentAt, since)
    val handle = Backend.receive(connection, Frames.Handle)
    val isMerged = reply.path("merged").asBoolean
    val metadata =
      if (isOnDriver || isMerged && by == Publication.HandedOver) Backend.receive(connection, Frames.Object) else null
    Backend.expectEnd(connection)
    val storeNanos = reply.path("storeNanos").asLong
    new CommitReply(client.storedVersion(reply, handle), new CommitCost(
      encodeNanos, math.max(0L, waited - storeNanos), storeNanos,
      reply.path("bytesWritten").asLong, reply.path("objectsWritten").asLong), isMerged, metadata)
  }
}
