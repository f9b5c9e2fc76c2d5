package org.apache.spark.sql.statestore.arrow

import java.io.{Closeable, IOException}
import java.nio.ByteBuffer
import java.nio.channels.{ClosedByInterruptException, FileChannel}
import java.nio.file.{Files, InvalidPathException, Path, StandardOpenOption}
import java.util.zip.CRC32

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.statestore.BackendException
import org.apache.spark.sql.statestore.backend.{BackendConnection, Frames}

/** Source of messages of changes; used by one thread. */
private[statestore] trait MessageSource {
  /**
   * Reads and decodes the next message; false at the end. Only then are all checksums verified.
   */
  def next(into: StoredMessage): Boolean
}

/** Messages that the backend sends, after it verified them. */
private[statestore] final class ReceivedMessages(
    connection: BackendConnection, unexpected: BackendConnection => BackendException) extends MessageSource {

  private var stream = 0

  override def next(into: StoredMessage): Boolean = {
    connection.receive()
    while (connection.kind == Frames.Stream) {
      stream += 1
      connection.receive()
    }
    if (connection.kind == Frames.End) {
      false
    } else {
      if (connection.kind != Frames.Data) throw unexpected(connection)
      into.columnFamily = connection.columnFamily
      into.stream = stream
      connection.payload(into.room(connection.length))
      into.decode(connection.length)
      true
    }
  }
}

/**
 * Messages in local files that the backend located.
 *
 * Guarantees: a wrong length, header or checksum and an unreadable file show as
 * `UnreadableChangesException`. Files are read rather than mapped: truncation meanwhile is an IOException
 * and not a SIGBUS.
 */
private[statestore] final class FileMessages(streams: JsonNode) extends MessageSource with Closeable {
  import FileMessages._

  if (!streams.isArray) throw new UnreadableChangesException("the list of streams is not a JSON array")

  private val checksum = new CRC32
  private val header = ByteBuffer.allocate(HeaderBytes)
  private var channel: FileChannel = _
  private var index = -1
  private var part = 0
  private var position = 0L

  /** Bytes of all messages. */
  def bytes: Long = {
    var sum = 0L
    streams.forEach(stream => stream.path("parts").forEach(part => sum += part.path(1).asLong))
    sum
  }

  /** Checks the declared lengths against the files, before memory is allocated by them. */
  def requireThere(): Unit = streams.forEach { stream =>
    val start = stream.path("start").asLong
    if (!stream.path("parts").isArray || start < 0) {
      throw new UnreadableChangesException(s"$stream does not describe a stream")
    }
    val size = try Files.size(pathOf(stream)) catch {
      case e: IOException => throw new UnreadableChangesException(e.toString, e)
    }
    var remainingBytes = size - start - HeaderBytes
    stream.path("parts").forEach { part =>
      val bytes = part.path(1).asLong
      if (bytes < 0 || bytes > remainingBytes) {
        throw new UnreadableChangesException(
          s"${stream.path("path")} is shorter than its messages, of which one has $bytes bytes")
      }
      remainingBytes -= bytes
    }
  }

  override def next(into: StoredMessage): Boolean =
    try {
      var hasMessage = false
      while (!hasMessage && index < streams.size) {
        if (channel == null) {
          index += 1
          if (index < streams.size) open()
        } else if (part == parts.size) {
          finish()
        } else {
          hasMessage = read(into)
        }
      }
      hasMessage
    } catch {
      case e: ClosedByInterruptException => throw e
      case e: BackendException => throw e
      case e: IOException => throw new UnreadableChangesException(e.toString, e)
    }

  override def close(): Unit = if (channel != null) {
    channel.close()
    channel = null
  }

  private def pathOf(stream: JsonNode): Path =
    try Path.of(stream.path("path").asText) catch {
      case e: InvalidPathException => throw new UnreadableChangesException(e.toString, e)
    }

  private def stream: JsonNode = streams.get(index)

  private def parts: JsonNode = stream.path("parts")

  private def open(): Unit = {
    channel = FileChannel.open(pathOf(stream), StandardOpenOption.READ)
    position = stream.path("start").asLong
    part = 0
    checksum.reset()
    header.clear()
    fill(header)
    checksum.update(header.flip())
    val version = header.get(8) & 0xff | (header.get(9) & 0xff) << 8
    if (java.util.Arrays.mismatch(header.array, 0, 8, Magic, 0, 8) >= 0 || version != FormatVersion) {
      throw new UnreadableChangesException(
        s"${stream.path("path")} does not start with the header of a stream of changes")
    }
  }

  // Reads a message; false if its column family is not wanted.
  private def read(into: StoredMessage): Boolean = {
    val bytes = parts.get(part).path(1).asLong
    val memory = into.room(bytes)
    val buffer = memory.nioBuffer(0L, bytes.toInt)
    fill(buffer)
    checksum.update(buffer.flip())
    into.columnFamily = parts.get(part).path(0).asInt
    into.stream = index
    part += 1
    val isWanted = into.columnFamily >= 0
    if (isWanted) into.decode(bytes)
    isWanted
  }

  private def finish(): Unit = {
    if (stream.path("isWhole").asBoolean && channel.size != position) {
      throw new UnreadableChangesException(s"${stream.path("path")} has more than its $position bytes")
    }
    if (checksum.getValue != stream.path("checksum").asLong) {
      throw new UnreadableChangesException(s"${stream.path("path")} does not match its checksum")
    }
    close()
  }

  private def fill(buffer: ByteBuffer): Unit =
    while (buffer.hasRemaining) {
      val n = channel.read(buffer, position)
      if (n < 0) throw new UnreadableChangesException(s"${stream.path("path")} ends at byte $position")
      position += n
    }
}

private[statestore] object FileMessages {
  private final val HeaderBytes = 16
  private final val FormatVersion = 1
  private val Magic = Array(0x89, 'S', 'S', 'T', 'S', 0x0d, 0x0a, 0x1a).map(_.toByte)
}
