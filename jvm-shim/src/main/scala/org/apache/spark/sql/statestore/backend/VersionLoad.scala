package org.apache.spark.sql.statestore.backend

import java.io.IOException
import java.nio.channels.ClosedByInterruptException
import java.nio.file.{Files, Paths}

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.statestore.BackendException
import org.apache.spark.sql.statestore.arrow.{FileMessages, LoadedChanges, ReceivedMessages, UnreadableChangesException}
import org.apache.spark.sql.statestore.table.{DamagedCopyException, LocalCopy, StateTable, TableSnapshot}

/**
 * A local copy that cannot be used: the load is repeated without it.
 *
 * @param isDamaged  whether it is of no use later, if the load without it succeeds
 */
private[backend] final class UnusableCopyException(path: String, isDamaged: Boolean, cause: Throwable)
  extends BackendException("Protocol", s"the local copy $path cannot be used: $cause", cause) {

  /** Removes the copy if it is damaged. To be called when the load has succeeded without it. */
  def removeIfDamaged(): Unit = try {
    if (isDamaged) Files.deleteIfExists(Paths.get(path))
  } catch {
    case _: IOException =>
  }
}

/**
 * One load of a version of a store.
 *
 * Guarantees: the tables that it leaves have the rows that the version's metadata counts. A local copy in which it
 * finds a fault, or whose rows do not add up with the changes since, is an `UnusableCopyException`.
 *
 * @param where     the store, in messages
 * @param objects   objects of the driver, which follow the request
 * @param tablesOf  see `CheckpointClient.load`
 */
private[backend] final class VersionLoad(
    client: CheckpointClient,
    timeout: RequestTimeout,
    version: Long,
    where: String,
    request: ObjectNode,
    objects: Seq[Array[Byte]],
    tablesOf: (Seq[JsonNode], LoadStart) => Seq[StateTable]) {
  import VersionLoad._

  private var tables = Seq.empty[StateTable]
  private var copy: Option[LocalCopyPlace] = None
  private var base = Seq.empty[TableSnapshot]

  def run(): LoadedVersion = try load() catch {
    case e: UnreadableChangesException if copy.isDefined => throw new UnusableCopyException(copy.get.path, isDamaged = true, e)
  }

  private def load(): LoadedVersion = {
    val (answer, handle) = client.backend.exchange(timeout) { connection =>
      connection.send(Frames.Control, CheckpointClient.mapper.writeValueAsBytes(request))
      objects.foreach(connection.sendNow(Frames.Object, _))
      connection.end()
      val answer = Backend.answer(connection)
      val files = if (answer.has("files")) new FileMessages(answer.path("files")) else null
      if (files != null) files.requireThere()
      begin(answer, if (files != null) files.bytes else math.min(answer.path("bytesRead").asLong, MostUnseenRows))
      val handle = Backend.receive(connection, Frames.Handle)
      if (files != null) Backend.expectEnd(connection)
      else changes(answer).load(new ReceivedMessages(connection, Backend.unexpected), isLarge = true)
      (answer, handle)
    }
    if (answer.has("files")) {
      val files = new FileMessages(answer.path("files"))
      try changes(answer).load(files, files.bytes >= LargeBytes) finally files.close()
    }
    try tables.indices.foreach(i => requireRows(answer.path("columnFamilies").get(i), tables(i))) catch {
      case e: BackendException if request.has("raw") => throw new UnreadableChangesException(e.getMessage, e)
    }
    val copyRequest = LocalCopyPlace.of(answer, "wantedCopy").map((_, base))
    new LoadedVersion(client.storedVersion(answer, handle), answer.path("bytesRead").asLong, copy.isDefined, copyRequest)
  }

  // The row counts of damaged metadata must not allocate memory: bounded by the bytes; the index grows on demand.
  private def begin(answer: JsonNode, mostRows: Long): Unit = {
    copy = LocalCopyPlace.of(answer, "localCopy")
    val described = answer.path("columnFamilies")
    val families = Seq.tabulate(described.size)(described.get)
    val start = if (answer.path("isLater").asBoolean) LoadStart.InMemory else LoadStart.Nothing
    tables = copy.fold(tablesOf(families, start))(openCopy(families, _))
    tables.indices.foreach(i => tables(i).reserve(math.min(families(i).path("rows").asLong, mostRows)))
  }

  private def openCopy(families: Seq[JsonNode], place: LocalCopyPlace): Seq[StateTable] =
    try {
      val opened = LocalCopy.open(place.path, place.streamId)
      try tablesOf(families, LoadStart.Copy(opened)) finally opened.close()
    } catch {
      case e: ClosedByInterruptException => throw e
      case e: IOException =>
        throw new UnusableCopyException(place.path, e.isInstanceOf[DamagedCopyException], e)
    }

  private def changes(answer: JsonNode): LoadedChanges = {
    val takeBase = () => base = tables.map(_.snapshot())
    new LoadedChanges(tables, answer.path("newestFirst").asBoolean, if (answer.has("wantedCopy")) takeBase else null)
  }

  // Checksums verify the bytes; this verifies the decoded rows.
  private def requireRows(family: JsonNode, table: StateTable): Unit = {
    val values = family.path("values").asLong(table.numValues)
    if (table.numKeys != family.path("rows").asLong || table.numValues != values) {
      throw new BackendException("CorruptCheckpointError",
        s"version $version of $where has ${table.numKeys} keys and ${table.numValues} values in the column family " +
          s"${family.path("name").asText}, but was committed with ${family.path("rows").asText} and $values. It is not " +
          "used, and nothing was changed: restore the checkpoint from a backup, or start from an earlier version.")
    }
  }
}

private[backend] object VersionLoad {
  // Loads below this size are faster without a reader thread.
  private final val LargeBytes = 256L << 10

  // Bound of the reserved rows if the size of the streams is unknown.
  private final val MostUnseenRows = 4L << 20
}
