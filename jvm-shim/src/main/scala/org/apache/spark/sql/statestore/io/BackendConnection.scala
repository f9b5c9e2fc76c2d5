package org.apache.spark.sql.statestore.io

import java.io.{Closeable, IOException}
import java.net.SocketAddress
import java.nio.{ByteBuffer, ByteOrder}
import java.nio.channels.SocketChannel

import org.apache.arrow.memory.ArrowBuf

import org.apache.spark.sql.statestore.{BackendConnectionException, BackendException}

/**
 * One connection to the backend: frames out, frames in.
 *
 * Guarantees: small frames leave in one system call together with the batch that follows them; a
 * batch handed over is released once it has left, or when the connection closes. A broken or ended
 * connection shows as `BackendConnectionException`. Used by one thread at a time; another one may look how
 * long that waits already, and end it.
 *
 * @param process   the backend at the other end
 * @param patience  of who uses it now
 */
private[io] final class BackendConnection(
    channel: SocketChannel, val process: BackendProcess, @volatile var patience: Patience) extends Closeable {
  import BackendConnection._

  private val incoming = ByteBuffer.allocateDirect(64 * 1024).order(ByteOrder.LITTLE_ENDIAN).flip()
  private var outgoing = new java.util.ArrayList[ByteBuffer]
  private var batch: ChangeBatch = _

  // When the transfer began that is under way, 0 if none is.
  @volatile private var waitingSince = 0L
  @volatile private var roundsWaited = 0
  @volatile private var expired: BackendException = _

  /** Of the frame whose header was read last. */
  var kind: Byte = 0
  var state: Int = 0
  var length: Long = 0L

  def connect(to: SocketAddress): Unit = transfer {
    channel.connect(to)
    0L
  }

  /** Whether nothing has come or gone for longer than the patience lasts; asked by any thread. */
  def isOverdue(now: Long): Boolean = {
    val since = waitingSince
    since != 0L && now - since > patience.nanos * (roundsWaited + 1)
  }

  /** Has it wait for as long again; false if it has done so often enough. Called by any thread. */
  def waitOn(): Boolean = {
    roundsWaited += 1
    roundsWaited < Patience.MostRounds
  }

  def isOpen: Boolean = channel.isOpen

  /** Ends it, so that who waits fails with this; called by any thread. */
  def expire(error: BackendException): Unit = {
    expired = error
    channel.close()
  }

  def send(frameKind: Byte, payload: Array[Byte]): Unit = {
    outgoing.add(header(frameKind, 0, payload.length.toLong))
    outgoing.add(ByteBuffer.wrap(payload))
  }

  /** Sends a large payload now, so that no more than one waits. */
  def sendNow(frameKind: Byte, payload: Array[Byte]): Unit = {
    send(frameKind, payload)
    flush()
  }

  /** Takes the batch over and sends it with what waits before it: a large one now, others at the latest with `end`. */
  def send(stateIndex: Int, changes: ChangeBatch): Unit = {
    try {
      if (batch != null) flush()
    } catch {
      case e: Throwable =>
        changes.close()
        throw e
    }
    batch = changes
    val sealedHeader = ByteBuffer.allocate(Frames.HeaderBytes + 4).order(ByteOrder.LITTLE_ENDIAN)
    putHeader(sealedHeader, Frames.Data, Frames.Sealed, stateIndex, changes.messageBytes)
    outgoing.add(sealedHeader.putInt(changes.checksum).flip())
    changes.addTo(outgoing)
    if (changes.messageBytes >= LargeBytes) flush()
  }

  def end(): Unit = {
    outgoing.add(header(Frames.End, 0, 0L))
    flush()
  }

  /** Reads the next frame's header; its payload must be read next. */
  def receive(): Unit = {
    fill(Frames.HeaderBytes)
    kind = incoming.get()
    incoming.get()
    state = incoming.getShort() & 0xffff
    val magic = incoming.getInt()
    length = incoming.getLong()
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
  }

  /** The payload. Memory for a large one is taken as it arrives. */
  def payload(): Array[Byte] = {
    var bytes = new Array[Byte](math.min(length, TrustedBytes).toInt)
    read(ByteBuffer.wrap(bytes))
    while (bytes.length < length) {
      val had = bytes.length
      bytes = java.util.Arrays.copyOf(bytes, math.min(length, 2L * had).toInt)
      read(ByteBuffer.wrap(bytes, had, bytes.length - had))
    }
    bytes
  }

  def payload(into: ArrowBuf): Unit = read(into.nioBuffer(0, length.toInt))

  override def close(): Unit = {
    release()
    outgoing = new java.util.ArrayList[ByteBuffer]
    channel.close()
  }

  private def flush(): Unit = {
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
    if (batch != null) {
      batch.close()
      batch = null
    }
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
    // The task was killed: no reason to ask again.
    case e: java.nio.channels.ClosedByInterruptException => e
    case _ if expired != null => expired
    case e =>
      new BackendConnectionException("the connection to the state store backend broke", e)
  }

  private def header(frameKind: Byte, stateIndex: Int, bytes: Long): ByteBuffer = {
    val buffer = ByteBuffer.allocate(Frames.HeaderBytes).order(ByteOrder.LITTLE_ENDIAN)
    putHeader(buffer, frameKind, 0, stateIndex, bytes)
    buffer.flip()
  }

  private def putHeader(to: ByteBuffer, frameKind: Byte, flags: Byte, stateIndex: Int, bytes: Long): Unit =
    to.put(frameKind).put(flags).putShort(stateIndex.toShort).putInt(Frames.Magic).putLong(bytes)
}

private[io] object BackendConnection {
  // The other side stores it while the next batch is made.
  private val LargeBytes = 128L << 10

  // As much is taken at once.
  private val TrustedBytes = 16L << 20
}
