package org.apache.spark.sql.statestore.backend

import java.io.{Closeable, IOException}
import java.net.SocketAddress
import java.nio.{ByteBuffer, ByteOrder}
import java.nio.channels.SocketChannel
import java.util.zip.CRC32

import org.apache.arrow.memory.ArrowBuf

import org.apache.spark.sql.statestore.{BackendConnectionException, BackendException}
import org.apache.spark.sql.statestore.arrow.ChangeBatch

/**
 * One connection to the backend, which sends and receives frames.
 *
 * Guarantees: small frames and small batches are sent in one system call; a batch that was passed in is
 * released once it was sent, or when the connection closes. A broken connection shows as `BackendConnectionException`. Used by one thread at a time; the watchdog may check
 * and expire it from another one.
 *
 * @param process  the backend at the other end
 * @param timeout  timeout of the present request
 */
private[statestore] final class BackendConnection(
    channel: SocketChannel, val process: BackendProcess, @volatile var timeout: RequestTimeout) extends Closeable {
  import BackendConnection._

  private val incoming = ByteBuffer.allocateDirect(64 * 1024).order(ByteOrder.LITTLE_ENDIAN).flip()
  private var outgoing = new java.util.ArrayList[ByteBuffer]

  // Those in `outgoing`, and their bytes.
  private val batches = new java.util.ArrayList[ChangeBatch]
  private var batchBytes = 0L

  // Start of the running transfer, 0 if none is running.
  @volatile private var waitingSince = 0L
  @volatile private var roundsWaited = 0
  @volatile private var expired: BackendException = _

  /** Header of the last received frame. */
  var kind: Byte = 0
  var columnFamily: Int = 0
  var length: Long = 0L
  private var checksum = 0

  def connect(to: SocketAddress): Unit = transfer {
    channel.connect(to)
    0L
  }

  /** True if the running transfer has made no progress for longer than the timeout. Thread-safe. */
  def isOverdue(now: Long): Boolean = {
    val started = waitingSince
    started != 0L && now - started > timeout.nanos * (roundsWaited + 1)
  }

  /** Extends the wait by another timeout; false if `MaxRounds` are exhausted. Thread-safe. */
  def extend(): Boolean = {
    roundsWaited += 1
    roundsWaited < RequestTimeout.MaxRounds
  }

  def isOpen: Boolean = channel.isOpen

  /** Closes the connection, so that a waiting thread fails with this error. Thread-safe. */
  def expire(error: BackendException): Unit = {
    expired = error
    channel.close()
  }

  def send(frameKind: Byte, payload: Array[Byte]): Unit = {
    val body = ByteBuffer.wrap(payload)
    outgoing.add(header(frameKind, 0, payload.length.toLong, checksumOf(body.duplicate())))
    outgoing.add(body)
  }

  /** Sends a large payload at once, so that at most one is buffered. */
  def sendNow(frameKind: Byte, payload: Array[Byte]): Unit = {
    send(frameKind, payload)
    flush()
  }

  /** Takes ownership of the batch and sends it after the buffered frames, once so many bytes are buffered. */
  def send(stateIndex: Int, changes: ChangeBatch): Unit = {
    batches.add(changes)
    batchBytes += changes.messageBytes
    outgoing.add(header(Frames.Data, stateIndex, changes.messageBytes, changes.checksum))
    changes.addTo(outgoing)
    if (batchBytes >= LargeBytes) flush()
  }

  def end(): Unit = {
    endMessage()
    flush()
  }

  /** Ends a message that another one follows; they are sent together. */
  def endMessage(): Unit = outgoing.add(header(Frames.End, 0, 0L, 0))

  /** Reads the next frame's header; its payload must be read next. */
  def receive(): Unit = {
    fill(Frames.HeaderBytes)
    kind = incoming.get()
    incoming.get()
    columnFamily = incoming.getShort() & 0xffff
    val magic = incoming.getInt()
    length = incoming.getLong()
    checksum = incoming.getInt()
    val most = kind match {
      case Frames.Control | Frames.Error => Frames.MaxControlBytes
      case Frames.Handle => Frames.MaxHandleBytes
      case Frames.Data => Frames.MaxDataBytes
      case Frames.Object => Frames.MaxObjectBytes
      case Frames.End | Frames.Stream => 0L
      case _ => -1L
    }
    if (magic != Frames.Magic || length < 0 || length > most) {
      throw new BackendException("Protocol",
        s"the backend sent a frame of kind $kind and $length bytes, which this version of the shim " +
          "cannot read: the two halves are out of step, restart the executor")
    }
    if (length == 0) requireChecksum(0)
  }

  /** Reads the payload into an array that grows as bytes arrive. */
  def payload(): Array[Byte] = {
    var bytes = new Array[Byte](math.min(length, TrustedBytes).toInt)
    read(ByteBuffer.wrap(bytes))
    while (bytes.length < length) {
      val had = bytes.length
      bytes = java.util.Arrays.copyOf(bytes, math.min(length, 2L * had).toInt)
      read(ByteBuffer.wrap(bytes, had, bytes.length - had))
    }
    requireChecksum(checksumOf(ByteBuffer.wrap(bytes)))
    bytes
  }

  /** Reads the payload into memory that has room for it. */
  def payload(into: ArrowBuf): Unit = {
    read(into.nioBuffer(0, length.toInt))
    requireChecksum(checksumOf(into.nioBuffer(0, length.toInt)))
  }

  override def close(): Unit = {
    release()
    outgoing = new java.util.ArrayList[ByteBuffer]
    channel.close()
  }

  /** Sends what is buffered. */
  def flush(): Unit = {
    val buffers = outgoing.toArray(new Array[ByteBuffer](outgoing.size))
    outgoing.clear()
    try {
      var first = 0
      while (first < buffers.length) {
        val from = first
        transfer(channel.write(buffers, from, buffers.length - from))
        while (first < buffers.length && !buffers(first).hasRemaining) first += 1
      }
    } finally {
      release()
    }
  }

  private def release(): Unit = {
    batches.forEach(_.close())
    batches.clear()
    batchBytes = 0L
  }

  private def fill(bytes: Int): Unit = {
    while (incoming.remaining < bytes) {
      incoming.compact()
      val n = transfer(channel.read(incoming))
      incoming.flip()
      if (n < 0) throw broken(null)
    }
  }

  private def read(target: ByteBuffer): Unit = {
    val buffered = math.min(incoming.remaining, target.remaining)
    if (buffered > 0) {
      val part = incoming.duplicate()
      part.limit(part.position() + buffered)
      target.put(part)
      incoming.position(incoming.position() + buffered)
    }
    while (target.hasRemaining) {
      val n = transfer(channel.read(target))
      if (n < 0) throw broken(null)
    }
  }

  private def transfer(io: => Long): Long = {
    roundsWaited = 0
    waitingSince = System.nanoTime() | 1L
    try io catch {
      case e: IOException => throw broken(e)
    } finally {
      waitingSince = 0L
    }
  }

  private def broken(cause: IOException): IOException = cause match {
    // The task was killed: not retried.
    case e: java.nio.channels.ClosedByInterruptException => e
    case _ if expired != null => expired
    case e =>
      new BackendConnectionException("the connection to the state store backend broke", e)
  }

  private def requireChecksum(actual: Int): Unit =
    if (actual != checksum) {
      throw new BackendException("Protocol",
        s"a frame of kind $kind and $length bytes from the backend does not match its checksum: the backend or the " +
          "machine is faulty, restart the executor")
    }

  private def header(frameKind: Byte, familyIndex: Int, bytes: Long, crc: Int): ByteBuffer =
    ByteBuffer.allocate(Frames.HeaderBytes).order(ByteOrder.LITTLE_ENDIAN)
      .put(frameKind).put(0.toByte).putShort(familyIndex.toShort).putInt(Frames.Magic).putLong(bytes).putInt(crc).flip()
}

private[statestore] object BackendConnection {
  // The backend stores it while the next batch is encoded.
  private val LargeBytes = 128L << 10

  // The array for a larger payload grows as bytes arrive: a forged length alone must not allocate memory.
  private val TrustedBytes = 16L << 20

  private def checksumOf(bytes: ByteBuffer): Int = {
    val crc = new CRC32
    crc.update(bytes)
    crc.getValue.toInt
  }
}
