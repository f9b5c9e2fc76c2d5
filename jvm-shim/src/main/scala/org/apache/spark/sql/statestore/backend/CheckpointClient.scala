package org.apache.spark.sql.statestore.backend

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.internal.Logging
import org.apache.spark.sql.statestore.BackendException
import org.apache.spark.sql.statestore.arrow.{ReceivedMessages, StoredMessage, UnreadableChangesException}
import org.apache.spark.sql.statestore.driver.{CommitFigures, DriverChain, DriverCheckpointStore, DriverVersion, MergedFigures}
import org.apache.spark.sql.statestore.provider.Handover
import org.apache.spark.sql.statestore.table.{ChangeSink, StateTable}

/**
 * Client of the backend for one store. Each call is one exchange and blocks until the backend has
 * answered.
 *
 * @param store        identity, location and options of the store, sent with every request
 * @param driverStore  checkpoint store on the driver, for memory storage without a directory
 */
private[statestore] final class CheckpointClient(
    val backend: Backend, store: ObjectNode, driverStore: Option[DriverCheckpointStore]) extends Logging {
  import CheckpointClient._

  private val compressed = store.path("options").path("compression").asText("zstd") == "zstd"

  private val timeout = new RequestTimeout(
    math.max(1L, store.path("options").path("storageTimeoutSeconds").asLong(RequestTimeout.DefaultSeconds)))

  // Whether commits of this store were handed over to the driver.
  @volatile private var handsOver = false

  // Identifies the store in messages, and as key on the driver.
  private val where = s"operator ${store.path("operator").asText}, partition " +
    s"${store.path("partition").asText}, store ${store.path("name").asText} at ${store.path("root").asText}"

  /** The store, as requests name it. */
  def describedStore: String = store.toString

  /**
   * Loads a version. `tablesOf` is called with the descriptions of its column families before their
   * rows arrive, and again if the connection broke: it returns a table for each, with the rows of the start that it gets.
   *
   * @param from   replays the changes since this version instead of reading later snapshots
   * @param after  an earlier version that is in memory, and the attempt that wrote it: the later changes may be enough
   */
  def load(
      version: Long,
      id: Option[String],
      from: Option[ReplayStart],
      after: Option[(Long, String)],
      tablesOf: (Seq[JsonNode], LoadStart) => Seq[StateTable]): LoadedVersion = {
    val request = newRequest("load")
    request.put("version", version)
    id.foreach(request.put("id", _))
    from.foreach { start =>
      request.put("from", start.version)
      start.id.foreach(request.put("fromId", _))
    }
    // The driver's objects are sent as a whole.
    after.filter(_ => driverStore.isEmpty).foreach { case (earlier, attemptId) =>
      request.put("after", earlier)
      request.put("afterAttemptId", attemptId)
    }
    val objects = driverStore.fold(Seq.empty[Array[Byte]])(collect(_, version, id, request))
    request.put("raw", true)
    // Not for a reader of stored state, which is no part of a run.
    if (from.isEmpty && store.path("run").asText.nonEmpty) request.put("local", true)
    val loading = new VersionLoad(this, timeout, version, where, request, objects, tablesOf)
    try loadRaw(loading, request) catch {
      // The latter if the backend has found damage while it sent the streams; decoding them, it looks for others with the same
      // state.
      case e: BackendException if isUnreadable(e) =>
        logWarning(s"version $version of $where could not be decoded by the JVM, the backend decodes it: " + e.getMessage)
        request.remove("raw")
        CheckpointClient.decodedLoads.increment()
        loading.run()
    }
  }

  private def loadRaw(loading: VersionLoad, request: ObjectNode): LoadedVersion = try loading.run() catch {
    case e: UnusableCopyException =>
      logWarning(s"$where is loaded without its local copy: ${e.getMessage}")
      request.remove("local")
      val loaded = loading.run()
      e.removeIfDamaged()
      loaded
    case e: BackendException if request.has("after") && isUnreadable(e) =>
      logWarning(s"$where is loaded without the earlier version in memory: ${e.getMessage}")
      request.remove("after")
      request.remove("afterAttemptId")
      loadRaw(loading, request)
  }

  private def isUnreadable(e: BackendException): Boolean =
    e.isInstanceOf[UnreadableChangesException] || e.kind == "CorruptCheckpointError"

  /** Returns the attempts of the versions from `oldest` to a version, and the description of one column family. */
  def lineage(version: Long, id: Option[String], oldest: Long, columnFamily: String): Lineage = {
    val request = newRequest("lineage")
    request.put("version", version)
    id.foreach(request.put("id", _))
    request.put("oldest", oldest)
    request.put("columnFamily", columnFamily)
    val reply = ask(request)
    val families = reply.path("columnFamilies")
    new Lineage(
      texts(reply, "attempts"),
      Seq.tabulate(families.size)(families.get),
      reply.path("columnFamily"))
  }

  /**
   * Reads the changes of one attempt at a version to a column family. `newSink` is called before the changes
   * arrive, possibly again if the connection broke.
   */
  def changes[S <: ChangeSink](
      version: Long, attemptId: String, idInPath: Boolean, columnFamily: String, newSink: () => S): S = {
    val request = newRequest("changes")
    request.put("version", version)
    request.put("attemptId", attemptId)
    request.put("idInPath", idInPath)
    request.put("columnFamily", columnFamily)
    backend.exchange(timeout) { connection =>
      connection.send(Frames.Control, mapper.writeValueAsBytes(request))
      connection.end()
      Backend.answer(connection)
      val sink = newSink()
      receiveChanges(connection, sink)
      sink
    }
  }

  /**
   * Returns the request to publish a version.
   *
   * @param parent         the version that the changes apply to, None for a full snapshot
   * @param parentAttemptId  the attempt that wrote the previous version, also for a full snapshot
   * @param base           a snapshot of an earlier version to start the chain from
   * @param oldestBaseVersion oldest version whose snapshot may be the base: other executors may discard older ones
   * @param knownSince     oldest version since which all changes are in memory, of which a run may be planned
   */
  def newCommit(
      version: Long,
      attemptId: String,
      idInPath: Boolean,
      parent: Option[StoredVersion],
      parentAttemptId: Option[String],
      base: Option[SnapshotHandle],
      oldestBaseVersion: Long,
      knownSince: Option[Long],
      families: Seq[FamilyChanges],
      by: Publication): CommitRequest = {
    val request = newRequest("commit")
    request.put("version", version)
    request.put("attemptId", attemptId)
    request.put("idInPath", idInPath)
    request.put("hasParent", parent.isDefined)
    parentAttemptId.foreach(request.put("parentAttemptId", _))
    request.put("hasBase", base.isDefined)
    if (base.isDefined) request.put("oldestBaseVersion", oldestBaseVersion)
    knownSince.foreach(request.put("knownSince", _))
    if (by == Publication.Merged) request.put("merge", true)
    if (by == Publication.HandedOver) {
      request.put("handOver", true)
      handsOver = true
    }
    val described = request.putArray("columnFamilies")
    families.foreach(family => described.add(family.description))
    new CommitRequest(
      this, version, attemptId, idInPath, parent, base, families, by, mapper.writeValueAsBytes(request), compressed,
      driverStore.isDefined)
  }

  /** Publishes a version; when this returns, it is durable or kept on the driver. */
  def commit(request: CommitRequest): CommitReply = {
    val reply = backend.exchange(timeout) { connection =>
      request.sendTo(connection)
      connection.flush()
      request.readReply(connection)
    }
    backend.recordCommit(reply.cost)
    driverStore.fold(reply) { driver =>
      val id = if (request.idInPath) Some(request.attemptId) else None
      handOver(driver, reply, DriverVersion(
        request.version, id, request.attemptId, request.parent.map(_.attemptId), reply.stored.baseVersion, reply.metadata))
    }
  }

  /**
   * Writes the merged files of the store's query, with the commits of all its stores, and returns when they are
   * durable.
   *
   * @param version    the version that the batch commits
   * @param attempts   the attempts that were merged
   * @param objects    metadata that executors have handed over, with its paths below the query's state directory
   * @param discarded  paths there that executors have discarded
   * @return           those of the attempts that this backend does not have: it has replaced another one since
   */
  def publish(
      version: Long,
      attempts: Iterable[String],
      objects: Seq[(String, Array[Byte])] = Nil,
      discarded: Iterable[String] = Nil): Set[String] = {
    val request = newRequest("publish")
    request.put("version", version)
    putTexts(request, "attempts", attempts)
    putTexts(request, "objects", objects.map(_._1))
    putTexts(request, "discarded", discarded)
    val control = mapper.writeValueAsBytes(request)
    val reply = backend.exchange(timeout) { connection =>
      connection.send(Frames.Control, control)
      objects.foreach { case (_, bytes) => connection.sendNow(Frames.Object, bytes) }
      connection.end()
      val reply = Backend.answer(connection)
      Backend.expectEnd(connection)
      reply
    }
    recordUsage(reply)
    backend.objectsWritten.add(reply.path("objectsWritten").asLong)
    CommitFigures.published(store.path("commits").asText, MergedFigures.of(reply))
    texts(reply, "missing").toSet
  }

  /**
   * Uploads a full snapshot of a committed version, the base of a later commit.
   *
   * @param since  uploads a run instead: the net changes since this version, which replace the streams with them
   */
  def uploadSnapshot(version: Long, since: Option[Long], families: Seq[FamilyChanges]): SnapshotHandle = {
    val request = newRequest("snapshot")
    request.put("version", version)
    since.foreach(request.put("since", _))
    val described = request.putArray("columnFamilies")
    families.foreach(family => described.add(family.description))
    val control = mapper.writeValueAsBytes(request)
    backend.exchange(timeout) { connection =>
      connection.send(Frames.Control, control)
      FamilyChanges.send(families, connection, compressed)
      connection.end()
      val reply = Backend.answer(connection)
      val handle = Backend.receive(connection, Frames.Handle)
      Backend.expectEnd(connection)
      recordUsage(reply)
      new SnapshotHandle(version, handle, LocalCopyPlace.of(reply, "wantedCopy"))
    }
  }

  /** Discards versions that are neither retained nor held; returns the number of deleted objects. */
  def cleanup(newest: Long, attemptId: String, id: Option[String], retainFrom: Long, most: Int): Long =
    driverStore match {
      case Some(driver) => driver.discardBefore(where, newest, id, attemptId, retainFrom, most).toLong
      case None => cleanUpFiles(newest, attemptId, id.isDefined, retainFrom, most)
    }

  private def cleanUpFiles(
      newest: Long, attemptId: String, idInPath: Boolean, retainFrom: Long, most: Int): Long = {
    val request = newRequest("cleanup")
    request.put("version", newest)
    request.put("attemptId", attemptId)
    request.put("idInPath", idInPath)
    request.put("retainFrom", retainFrom)
    request.put("mostVersions", most)
    if (handsOver) request.put("handOver", true)
    val reply = ask(request)
    recordUsage(reply)
    val discarded = texts(reply, "discarded")
    if (discarded.nonEmpty) {
      Handover.discarded(store.path("commits").asText, store.path("run").asText, discarded.toArray)
    }
    reply.path("deleted").asLong
  }

  // Exchanges a request for an answer of one control frame.
  private def ask(request: ObjectNode): JsonNode = backend.exchange(timeout)(Backend.roundTrip(_, request))

  // Fetches the objects of a version from the driver and lists them in the request.
  private def collect(
      driver: DriverCheckpointStore, version: Long, id: Option[String], request: ObjectNode): Seq[Array[Byte]] = {
    var chain: DriverChain = null
    var objects = Seq.empty[Option[Array[Byte]]]
    var looks = 0
    // A concurrent cleanup may discard objects between the listing and the fetch: retried once.
    while (looks == 0 || looks == 1 && objects.exists(_.isEmpty)) {
      chain = driver.chain(where, version, id)
      objects = chain.names.map(driver.fetch(where, _))
      looks += 1
    }
    val isWhole = objects.forall(_.isDefined)
    val paths = request.putArray("metadataPaths")
    if (isWhole) chain.names.foreach(name => paths.add(name.path))
    chain.range.foreach { case (oldest, newest) => request.putArray("driverRange").add(oldest).add(newest) }
    if (isWhole) objects.flatten else Nil
  }

  // The version is committed only once the driver has it.
  private def handOver(driver: DriverCheckpointStore, reply: CommitReply, driverVersion: DriverVersion): CommitReply = {
    val start = System.nanoTime()
    if (!driver.put(where, driverVersion)) {
      throw new BackendException("StateLostError",
        s"version ${driverVersion.version} of $where changes version ${driverVersion.version - 1}, attempt " +
          s"${driverVersion.parentAttemptId.getOrElse("")}, which the driver does not keep: it was discarded, or the " +
          "application that kept it has ended. The version is not committed.")
    }
    val cost = reply.cost
    new CommitReply(reply.stored, new CommitCost(
      cost.encodeNanos, cost.sendNanos, cost.storeNanos + System.nanoTime() - start, cost.bytes, cost.objects),
      isMerged = false, null)
  }

  private def newRequest(op: String): ObjectNode = {
    val request = mapper.createObjectNode()
    request.put("op", op)
    request.set[ObjectNode]("store", store)
    request
  }

  private def recordUsage(reply: JsonNode): Unit = {
    if (reply.has("memoryBytes")) backend.memoryBytes = reply.get("memoryBytes").asLong
    if (reply.has("storageRetries")) backend.storageRetries.add(reply.get("storageRetries").asLong)
    if (reply.has("streamsRepaired")) backend.streamsRepaired.add(reply.get("streamsRepaired").asLong)
  }

  private[backend] def storedVersion(reply: JsonNode, handle: Array[Byte]): StoredVersion = {
    recordUsage(reply)
    // Jackson would read a missing field as 0.
    val streams = reply.path("streams")
    val plan = reply.path("plan")
    if (!reply.path("attemptId").isTextual || !reply.path("chainLength").isInt || !reply.path("baseVersion").isNumber ||
      !streams.isArray || PlanFields.exists(!plan.path(_).isNumber)) {
      throw new BackendException("Protocol",
        "the backend described a version incompletely: attemptId, chainLength, baseVersion, streams or plan is missing")
    }
    val planned = PlanFields.map(plan.get(_).asLong)
    new StoredVersion(
      handle,
      reply.path("attemptId").asText,
      reply.path("chainLength").asInt,
      reply.path("baseVersion").asLong,
      Array.tabulate(streams.size)(streams.get(_).asLong),
      new SnapshotPlan(planned(0), planned(1), planned(2), planned(3), planned(4)))
  }

  // Applies all changes that follow to the sink.
  private def receiveChanges(connection: BackendConnection, sink: ChangeSink): Unit = {
    val messages = new ReceivedMessages(connection, Backend.unexpected)
    val message = new StoredMessage
    try {
      while (messages.next(message)) {
        if (message.columns.hasMerges && !sink.hasLists) {
          throw new UnreadableChangesException("a merge into a column family with one value per key")
        }
        message.columns.applyTo(sink)
      }
    } finally {
      message.close()
    }
  }

}

private[statestore] object CheckpointClient extends Logging {
  val mapper = new ObjectMapper

  private val PlanFields = Array("inlineUpTo", "fullUpTo", "upload", "fullUpToAtTick", "uploadAtTick")

  /**
   * Sends requests of one backend one after the other, then reads the answers: fewer system calls and context switches.
   * They and their answers must be small, so that neither side waits until the other one reads.
   *
   * @return  the reply to each, null if it failed or has none: it may be sent again alone
   */
  def commitTogether(requests: Seq[CommitRequest]): Array[CommitReply] = {
    val client = requests.head.client
    val replies = new Array[CommitReply](requests.length)
    try client.backend.exchangeOnce(client.timeout) { connection =>
      requests.foreach(_.sendTo(connection))
      connection.flush()
      var since = Long.MinValue
      requests.iterator.zipWithIndex.foreach { case (request, i) =>
        try replies(i) = request.readReply(connection, since) catch {
          case e: BackendException if Backend.isAnswer(e, connection) => logDebug(s"commit ${request.attemptId} failed", e)
        }
        since = System.nanoTime()
      }
    } catch {
      case NonFatal(e) => logDebug(s"${replies.count(_ == null)} of ${replies.length} commits have no answer", e)
    }
    replies.foreach(reply => if (reply != null) client.backend.recordCommit(reply.cost))
    replies
  }

  private def texts(reply: JsonNode, field: String): Seq[String] = {
    val elements = reply.path(field)
    Seq.tabulate(elements.size)(elements.get(_).asText)
  }

  private def putTexts(request: ObjectNode, field: String, texts: Iterable[String]): Unit = {
    val array = request.putArray(field)
    texts.foreach(array.add(_))
  }

  /** Number of loads that the backend had to decode. */
  val decodedLoads = new java.util.concurrent.atomic.LongAdder
}
