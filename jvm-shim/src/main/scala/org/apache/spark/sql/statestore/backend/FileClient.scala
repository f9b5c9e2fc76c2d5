package org.apache.spark.sql.statestore.backend

import java.io.FileNotFoundException
import java.util.UUID

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.hadoop.fs.{FileAlreadyExistsException, FileStatus, Path}

import org.apache.spark.sql.statestore.BackendException
import org.apache.spark.sql.statestore.provider.BackendOptions
import org.apache.spark.util.UninterruptibleThread

/**
 * Client of the backend for files that Spark writes itself. Each call is one exchange and blocks until the
 * backend has answered; the options of the state store for storage apply.
 *
 * Guarantees: a created file appears whole or not at all, and replaces another one only if asked to. A change is
 * done or has failed when its call ends, also if a query is stopped meanwhile, which interrupts its thread.
 */
private[statestore] final class FileClient(val backend: Backend, options: BackendOptions) {
  import FileClient._

  private val timeout = new RequestTimeout(options.storageTimeoutSeconds)

  /** Reads up to `size` bytes from an offset; fewer at the end of the file. */
  def read(path: Path, start: Long, size: Int): Array[Byte] = {
    val request = newRequest("readFile", path).put("start", start).put("size", size)
    exchange { connection =>
      connection.send(Frames.Control, mapper.writeValueAsBytes(request))
      connection.end()
      Backend.answer(connection)
      connection.receive()
      if (connection.kind != Frames.Object) throw Backend.unexpected(connection)
      val bytes = connection.payload()
      Backend.expectEnd(connection)
      bytes
    }
  }

  /**
   * Creates a file.
   *
   * @param parts      its content, asked for again if the connection broke
   * @param overwrite  replaces a file that exists; otherwise such a file is a `FileAlreadyExistsException`
   */
  def create(path: Path, parts: () => Iterator[Array[Byte]], overwrite: Boolean): Unit = {
    val request = newRequest("createFile", path).put("overwrite", overwrite)
    var tries = 0
    uninterrupted(exchange { connection =>
      request.put("repeated", tries > 0)
      tries += 1
      connection.send(Frames.Control, mapper.writeValueAsBytes(request))
      parts().foreach(connection.sendNow(Frames.Object, _))
      connection.end()
      Backend.answer(connection)
      Backend.expectEnd(connection)
    })
  }

  /**
   * Returns the status of a file or directory, if it exists.
   *
   * @param isFile  true if it is no directory: on object stores the search for a directory is a listing
   */
  def status(path: Path, isFile: Boolean): Option[FileStatus] =
    entries(ask(newRequest("fileStatus", path).put("isFile", isFile)), _ => path).headOption

  /** Lists a directory. */
  def list(path: Path): Seq[FileStatus] = entries(ask(newRequest("listDirectory", path)), new Path(path, _))

  /** Removes a file, or a directory with all that is in it; does nothing if there is none. */
  def delete(path: Path): Unit = uninterrupted(ask(newRequest("deleteFile", path)))

  /** Removes files of a directory, by name; those that do not exist are skipped. */
  def deleteFiles(directory: Path, names: Iterable[String]): Unit = {
    val request = newRequest("deleteFiles", directory)
    val array = request.putArray("names")
    names.foreach(array.add)
    uninterrupted(ask(request))
  }

  /** Makes a directory and those above it; does nothing on object stores. */
  def makeDirectory(path: Path): Unit = uninterrupted(ask(newRequest("makeDirectory", path)))

  /**
   * Has the backend give a query that starts the state partitions of its session. Returns after a second or so with how far it
   * is; to be called until it is complete.
   *
   * @param run         of the query that starts; a rescale of another run is ended
   * @param canHaveIds  true if the query can go on in checkpoint format v2
   */
  def settlePartitions(checkpoint: Path, query: Option[String], run: UUID, canHaveIds: Boolean): JsonNode = {
    val request = newRequest("settlePartitions", checkpoint).put("canHaveIds", canHaveIds)
      .put("start", run.toString.replace("-", ""))
    query.foreach(request.put("query", _))
    ask(request)
  }

  private def ask(request: ObjectNode): JsonNode = exchange(Backend.roundTrip(_, request))

  private def exchange[T](body: BackendConnection => T): T =
    try backend.exchange(timeout)(body) catch {
      case e: BackendException if e.kind == "CheckpointNotFoundError" =>
        throw new FileNotFoundException(e.getMessage)
      case e: BackendException if e.kind == "CheckpointExistsError" =>
        throw new FileAlreadyExistsException(e.getMessage)
      case e: BackendException if Unusable(e.kind) =>
        throw new BackendException(e.kind, s"${e.getMessage} On the driver the backend reads and writes Spark's own files " +
          "of a checkpoint, by default with the interpreter of the executors: " +
          "spark.sql.streaming.stateStore.backend.driverPython names another one. configure(..., spark_files='hadoop'), or a session without " +
          "spark.sql.streaming.checkpointFileManagerClass, leaves them to Hadoop.", e)
    }

  // The backend would go on after an interrupt, and the next run of the query meet a file that it does not expect.
  private def uninterrupted[T](body: => T): T = Thread.currentThread match {
    case query: UninterruptibleThread => query.runUninterruptibly(body)
    case _ => body
  }

  private def newRequest(op: String, path: Path): ObjectNode = {
    val request = mapper.createObjectNode().put("op", op).put("path", path.toString)
    options.addTo(request.putObject("options"))
    request
  }
}

private object FileClient {
  private val mapper = new ObjectMapper

  // This machine lacks what the backend needs for the URL, or the backend itself.
  private val Unusable = Set("StorageURLError", "MissingDriverError", "Start")

  private def entries(answer: JsonNode, pathOf: String => Path): Seq[FileStatus] = {
    val nodes = answer.path("entries")
    Seq.tabulate(nodes.size)(nodes.get).map { entry =>
      new FileStatus(
        entry.path("size").asLong, entry.path("isDirectory").asBoolean, 1, 0L, entry.path("modified").asLong,
        pathOf(entry.path("name").asText))
    }
  }
}
