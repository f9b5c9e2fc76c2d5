package org.apache.spark.sql.statestore.io

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.internal.Logging
import org.apache.spark.sql.statestore.BackendException
import org.apache.spark.sql.statestore.families.FamilyMark
import org.apache.spark.sql.statestore.memory.{CheckpointKeeper, HeldChain, HeldVersion}
import org.apache.spark.sql.statestore.table.{ChangeSink, LogScan, StateTable}

/**
 * A version as it is stored: the handle that the backend gave for it, opaque here, and what the
 * shim decides by.
 *
 * @param bytes         the handle, one Arrow record batch message
 * @param attempt       names the commit attempt that wrote the version
 * @param chainLength   streams that a load reads: the base and the deltas on top of it
 * @param baseVersion   version of the newest full snapshot in the chain
 * @param baseBytes     bytes of that snapshot, as stored
 * @param deltaBytes    bytes of the deltas, as stored
 */
private[statestore] final class StoredVersion(
    val bytes: Array[Byte],
    val attempt: String,
    val chainLength: Int,
    val baseVersion: Long,
    val baseBytes: Long,
    val deltaBytes: Long)

/** A full snapshot that was written ahead of time and waits to become the base of a commit. */
private[statestore] final class StoredBase(val version: Long, val bytes: Array[Byte])

/** What one commit cost: times in nanoseconds, sizes in bytes. */
private[statestore] final class CommitCost(
    val sealNanos: Long,
    val sendNanos: Long,
    val storeNanos: Long,
    val bytes: Long,
    val objects: Long)

private[statestore] final class CommitReply(val stored: StoredVersion, val cost: CommitCost)

/** What `load` found before its rows arrive. */
private[statestore] final class LoadedVersion(val stored: StoredVersion, val bytesRead: Long)

/** The version that a replay starts from. */
private[statestore] final class ReplayStart(val version: Long, val id: Option[String])

/** The attempts that led to a version, the oldest first, and what describes one of its states. */
private[statestore] final class Lineage(val attempts: Seq[String], val state: JsonNode)

/** One named state of a commit: what describes it, and which records go. */
private[statestore] final class NamedState(
    val description: ObjectNode,
    val scan: () => LogScan,
    val selection: RecordSelection)

private[statestore] object NamedState {
  /** Everything that a family had at a version. */
  def whole(mark: FamilyMark): NamedState =
    new NamedState(mark.describe(), () => mark.family.table.scan(mark.content.view), RecordSelection.Live)
}

/**
 * What the shim asks of the backend for one store; each call is one exchange and blocks until the
 * backend answered.
 *
 * @param store   where the store lies and who it is, sent with every request
 * @param keeper  keeps the metadata of a store that has it in no file
 */
private[statestore] final class CheckpointClient(
    val backend: Backend, store: ObjectNode, keeper: Option[CheckpointKeeper]) extends Logging {
  import CheckpointClient._

  private val compression = Compression.of(store.path("options").path("compression").asText("zstd"))

  private val patience = new Patience(
    store.path("options").path("storageTimeoutSeconds").asLong(Patience.DefaultSeconds))

  // How messages name the store, and where: two stores of one application have no place in common.
  private val where = s"operator ${store.path("operator").asText}, partition " +
    s"${store.path("partition").asText}, store ${store.path("name").asText} at ${store.path("root").asText}"

  /**
   * Loads a version. `tablesOf` is called with the descriptions of its states before their rows
   * arrive, possibly again if the connection broke: it must give an empty table for each.
   *
   * @param from  replay the changes since this version, instead of reading what was made of them
   */
  def load(
      version: Long,
      id: Option[String],
      from: Option[ReplayStart],
      tablesOf: Seq[JsonNode] => Seq[StateTable]): LoadedVersion = {
    val request = newRequest("load")
    request.put("version", version)
    id.foreach(request.put("id", _))
    from.foreach { start =>
      request.put("from", start.version)
      start.id.foreach(request.put("fromId", _))
    }
    val objects = keeper.fold(Seq.empty[Array[Byte]])(collect(_, version, id, request))
    request.put("asStored", true)
    try load(version, request, objects, tablesOf) catch {
      case e: UnreadableChangesException =>
        logWarning(s"version $version of $where could not be read as it is stored, the backend reads it: " +
          e.getMessage)
        request.remove("asStored")
        CheckpointClient.decodedLoads.increment()
        load(version, request, objects, tablesOf)
    }
  }

  private def load(
      version: Long,
      request: ObjectNode,
      objects: Seq[Array[Byte]],
      tablesOf: Seq[JsonNode] => Seq[StateTable]): LoadedVersion = {
    var tables = Seq.empty[StateTable]
    val (found, handle) = backend.exchange(patience) { connection =>
      connection.send(Frames.Control, mapper.writeValueAsBytes(request))
      objects.foreach(connection.sendNow(Frames.Object, _))
      connection.end()
      val found = Backend.answer(connection)
      val states = found.path("states")
      tables = tablesOf(Seq.tabulate(states.size)(states.get))
      // What metadata says of rows is believed as far as there are bytes for them; the index grows by itself.
      val most = if (found.has("files")) {
        val files = new FileMessages(found.path("files"))
        files.requireThere()
        files.bytes
      } else {
        math.min(found.path("bytesRead").asLong, MostUnseenRows)
      }
      tables.indices.foreach(i => tables(i).reserve(math.min(states.get(i).path("rows").asLong, most)))
      val handle = receiveHandle(connection)
      if (found.has("files")) {
        expectEnd(connection)
      } else {
        val read = new LoadedChanges(tables, found.path("newestFirst").asBoolean)
        read.all(new ReceivedMessages(connection, unexpected), isLarge = true)
      }
      (found, handle)
    }
    if (found.has("files")) {
      val files = new FileMessages(found.path("files"))
      val read = new LoadedChanges(tables, found.path("newestFirst").asBoolean)
      try read.all(files, files.bytes >= LargeBytes) finally files.close()
    }
    try tables.indices.foreach(i => requireRows(version, found.path("states").get(i), tables(i))) catch {
      case e: BackendException if request.has("asStored") => throw new UnreadableChangesException(e.getMessage, e)
    }
    new LoadedVersion(storedVersion(found, handle), found.path("bytesRead").asLong)
  }

  /** The attempts at the versions from `oldest` to a version, and what describes one of its states. */
  def lineage(version: Long, id: Option[String], oldest: Long, state: String): Lineage = {
    val request = newRequest("lineage")
    request.put("version", version)
    id.foreach(request.put("id", _))
    request.put("oldest", oldest)
    request.put("state", state)
    val reply = ask(request)
    val attempts = reply.path("attempts")
    new Lineage(Seq.tabulate(attempts.size)(attempts.get(_).asText), reply.path("state"))
  }

  /**
   * What one attempt at a version changed in a state. `newSink` is called before the changes
   * arrive, possibly again if the connection broke.
   */
  def changes[S <: ChangeSink](
      version: Long, attempt: String, idInPath: Boolean, state: String, newSink: () => S): S = {
    val request = newRequest("changes")
    request.put("version", version)
    request.put("attempt", attempt)
    request.put("idInPath", idInPath)
    request.put("state", state)
    backend.exchange(patience) { connection =>
      connection.send(Frames.Control, mapper.writeValueAsBytes(request))
      connection.end()
      Backend.answer(connection)
      val sink = newSink()
      receiveChanges(connection, sink)
      sink
    }
  }

  /**
   * Publishes a version; when this returns it is durable, or kept by the keeper.
   *
   * @param parent         the version that the changes apply to, None for a full snapshot
   * @param parentAttempt  the attempt that wrote the version before, whether it is needed or not
   * @param base           a snapshot of an earlier version to start the chain from
   * @param oldestBase     a snapshot of an older version is not used: other executors may be discarding it
   */
  def commit(
      version: Long,
      attempt: String,
      idInPath: Boolean,
      parent: Option[StoredVersion],
      parentAttempt: Option[String],
      base: Option[StoredBase],
      oldestBase: Long,
      states: Seq[NamedState]): CommitReply = {
    val request = newRequest("commit")
    request.put("version", version)
    request.put("attempt", attempt)
    request.put("idInPath", idInPath)
    request.put("hasParent", parent.isDefined)
    parentAttempt.foreach(request.put("parentAttempt", _))
    request.put("hasBase", base.isDefined)
    if (base.isDefined) request.put("oldestBase", oldestBase)
    val described = request.putArray("states")
    states.foreach(state => described.add(state.description))
    val control = mapper.writeValueAsBytes(request)
    var metadata: Array[Byte] = null
    val reply = backend.exchange(patience) { connection =>
      connection.send(Frames.Control, control)
      parent.foreach(p => connection.send(Frames.Handle, p.bytes))
      base.foreach(b => connection.send(Frames.Handle, b.bytes))
      val sealNanos = sendStates(connection, states)
      val sent = System.nanoTime()
      connection.end()
      val reply = Backend.answer(connection)
      val waited = System.nanoTime() - sent
      val handle = receiveHandle(connection)
      if (keeper.isDefined) metadata = receive(connection, Frames.Object)
      expectEnd(connection)
      val storeNanos = reply.path("storeNanos").asLong
      new CommitReply(storedVersion(reply, handle), new CommitCost(
        sealNanos, math.max(0L, waited - storeNanos), storeNanos,
        reply.path("bytesWritten").asLong, reply.path("objectsWritten").asLong))
    }
    keeper.fold(reply) { driver =>
      val id = if (idInPath) Some(attempt) else None
      handOver(driver, reply, HeldVersion(
        version, id, attempt, parent.map(_.attempt), reply.stored.baseVersion, metadata))
    }
  }

  /** Writes a full snapshot of a committed version, to become the base of a later commit. */
  def materialise(version: Long, states: Seq[NamedState]): StoredBase = {
    val request = newRequest("materialise")
    request.put("version", version)
    val described = request.putArray("states")
    states.foreach(state => described.add(state.description))
    val control = mapper.writeValueAsBytes(request)
    backend.exchange(patience) { connection =>
      connection.send(Frames.Control, control)
      sendStates(connection, states)
      connection.end()
      val reply = Backend.answer(connection)
      val handle = receiveHandle(connection)
      expectEnd(connection)
      note(reply)
      new StoredBase(version, handle)
    }
  }

  /** Discards versions that nobody promised to keep; returns the number of deleted objects. */
  def cleanup(newest: Long, attempt: String, id: Option[String], retainFrom: Long, most: Int): Long =
    keeper match {
      case Some(driver) => driver.discardBefore(where, newest, id, attempt, retainFrom, most).toLong
      case None => cleanUpFiles(newest, attempt, id.isDefined, retainFrom, most)
    }

  private def cleanUpFiles(
      newest: Long, attempt: String, idInPath: Boolean, retainFrom: Long, most: Int): Long = {
    val request = newRequest("cleanup")
    request.put("version", newest)
    request.put("attempt", attempt)
    request.put("idInPath", idInPath)
    request.put("retainFrom", retainFrom)
    request.put("mostVersions", most)
    val reply = ask(request)
    note(reply)
    reply.path("deleted").asLong
  }

  // One exchange of a request for an answer, with nothing besides.
  private def ask(request: ObjectNode): JsonNode = backend.exchange(patience) { connection =>
    connection.send(Frames.Control, mapper.writeValueAsBytes(request))
    connection.end()
    val reply = Backend.answer(connection)
    expectEnd(connection)
    reply
  }

  // Fetches what a version is made of, and says in the request what follows it.
  private def collect(
      driver: CheckpointKeeper, version: Long, id: Option[String], request: ObjectNode): Seq[Array[Byte]] = {
    var chain: HeldChain = null
    var objects = Seq.empty[Option[Array[Byte]]]
    var looks = 0
    // What was found may be discarded before it is fetched, once.
    while (looks == 0 || looks == 1 && objects.exists(_.isEmpty)) {
      chain = driver.chain(where, version, id)
      objects = chain.names.map(driver.fetch(where, _))
      looks += 1
    }
    val isWhole = objects.forall(_.isDefined)
    val paths = request.putArray("objects")
    if (isWhole) chain.names.foreach(name => paths.add(name.path))
    chain.range.foreach { case (oldest, newest) => request.putArray("kept").add(oldest).add(newest) }
    if (isWhole) objects.flatten else Nil
  }

  // Only when this returns may the version be reported as committed.
  private def handOver(driver: CheckpointKeeper, reply: CommitReply, held: HeldVersion): CommitReply = {
    val start = System.nanoTime()
    if (!driver.put(where, held)) {
      throw new BackendException("StateLostError",
        s"version ${held.version} of $where changes version ${held.version - 1}, attempt " +
          s"${held.parentAttempt.getOrElse("")}, which the driver does not keep: it was discarded, or the " +
          "application that kept it has ended. The version is not committed.")
    }
    val cost = reply.cost
    new CommitReply(reply.stored, new CommitCost(
      cost.sealNanos, cost.sendNanos, cost.storeNanos + System.nanoTime() - start, cost.bytes, cost.objects))
  }

  // Checksums cover what was written; this covers what was made of it.
  private def requireRows(version: Long, state: JsonNode, table: StateTable): Unit = {
    val values = state.path("values").asLong(table.numValues)
    if (table.numKeys != state.path("rows").asLong || table.numValues != values) {
      throw new BackendException("CorruptCheckpointError",
        s"version $version of $where gave ${table.numKeys} keys and ${table.numValues} values of the state " +
          s"${state.path("name").asText}, and was committed with ${state.path("rows").asText} and $values. It is not used, and nothing was changed: copy the checkpoint back from a " +
          "backup, or start from an earlier version.")
    }
  }

  private def newRequest(op: String): ObjectNode = {
    val request = mapper.createObjectNode()
    request.put("op", op)
    request.set[ObjectNode]("store", store)
    request
  }

  private def note(reply: JsonNode): Unit = {
    if (reply.has("memoryBytes")) backend.memoryBytes = reply.get("memoryBytes").asLong
    if (reply.has("storageRetries")) backend.storageRetries.add(reply.get("storageRetries").asLong)
  }

  private def storedVersion(reply: JsonNode, handle: Array[Byte]): StoredVersion = {
    note(reply)
    // What is missing would else be taken for nothing.
    if (!reply.path("attempt").isTextual || !reply.path("chainLength").isInt || !reply.path("baseVersion").isNumber) {
      throw new BackendException("Protocol", "the backend gave a version without saying what it is")
    }
    new StoredVersion(
      handle,
      reply.path("attempt").asText,
      reply.path("chainLength").asInt,
      reply.path("baseVersion").asLong,
      reply.path("baseBytes").asLong,
      reply.path("deltaBytes").asLong)
  }

  private def sendStates(connection: BackendConnection, states: Seq[NamedState]): Long = {
    var sealNanos = 0L
    var index = 0
    states.foreach { state =>
      val batches = new ChangeBatches(state.scan, state.selection, compression)
      var start = System.nanoTime()
      var batch = batches.next()
      sealNanos += System.nanoTime() - start
      while (batch != null) {
        connection.send(index, batch)
        start = System.nanoTime()
        batch = batches.next()
        sealNanos += System.nanoTime() - start
      }
      index += 1
    }
    sealNanos
  }

  // All changes that follow, each to the sink of its state.
  private def receiveChanges(connection: BackendConnection, sink: ChangeSink): Unit = {
    val messages = new ReceivedMessages(connection, unexpected)
    val message = new StoredMessage
    try {
      while (messages.next(message)) {
        if (message.columns.hasAppends && !sink.hasLists) {
          throw new UnreadableChangesException("a further value where a key has one")
        }
        message.columns.applyTo(sink)
      }
    } finally {
      message.close()
    }
  }

  private def receiveHandle(connection: BackendConnection): Array[Byte] = receive(connection, Frames.Handle)

  private def receive(connection: BackendConnection, kind: Byte): Array[Byte] = {
    connection.receive()
    if (connection.kind != kind) throw unexpected(connection)
    connection.payload()
  }

  private def expectEnd(connection: BackendConnection): Unit = {
    connection.receive()
    if (connection.kind != Frames.End) throw unexpected(connection)
  }

  // What the backend says went wrong, if that is what came instead.
  private def unexpected(connection: BackendConnection): BackendException =
    if (connection.kind == Frames.Error) Backend.failure(Backend.readNode(connection))
    else new BackendException("Protocol", s"the backend sent a frame of kind ${connection.kind} out of turn")
}

private[statestore] object CheckpointClient {
  val mapper = new ObjectMapper

  /** Loads that the backend had to read, since they could not be read as they were stored. */
  val decodedLoads = new java.util.concurrent.atomic.LongAdder

  // Less is read sooner than a thread is started for it.
  private final val LargeBytes = 256L << 10

  // Of files in which the backend has not looked yet.
  private final val MostUnseenRows = 4L << 20
}
