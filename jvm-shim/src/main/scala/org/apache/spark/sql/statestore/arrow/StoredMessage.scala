package org.apache.spark.sql.statestore.arrow

import java.io.Closeable
import java.nio.ByteOrder

import org.apache.arrow.flatbuf.{CompressionType, Message, MessageHeader, RecordBatch}
import org.apache.arrow.memory.ArrowBuf

import org.apache.spark.sql.statestore.BackendException
import org.apache.spark.sql.statestore.backend.Frames
import org.apache.spark.unsafe.Platform

/** Stored changes that the JVM cannot decode; the backend then decodes them, or reports the cause. */
private[statestore] final class UnreadableChangesException(problem: String, cause: Throwable = null)
  extends BackendException("Protocol", s"changes of the backend cannot be decoded: $problem", cause)

/**
 * Decoder of one Arrow record batch of changes, whose memory is reused for the next one.
 *
 * Guarantees: the bounds of every buffer and row are checked before `columns` exposes them, whatever
 * bytes arrive: the checksum of the stream is verified only at its end.
 */
private[statestore] final class StoredMessage extends Closeable {
  import StoredMessage._

  private var raw: ArrowBuf = _
  private var plain: ArrowBuf = _

  // Indexes of the message's buffers that are read, and their addresses and sizes.
  private var needed = Variable
  private val addresses = new Array[Long](Variable.length)
  private val sizes = new Array[Long](Variable.length)

  /** The changes, valid after `decode`. */
  val columns = new ChangeColumns

  /** Position of the column family in the version. */
  var columnFamily = 0

  /** Number of the stream, from 0. */
  var stream = 0

  /** Returns memory for a message of so many bytes. */
  def room(bytes: Long): ArrowBuf = {
    if (bytes < 0 || bytes > Frames.MaxDataBytes) throw malformed(s"a message of $bytes bytes")
    if (raw == null || raw.capacity < bytes) {
      if (raw != null) raw.close()
      raw = null
      raw = ChangeBatch.allocator.buffer(bytes)
    }
    raw
  }

  /** Decodes the message of so many bytes in the memory that `room` returned. */
  def decode(length: Long): Unit =
    try read(length) catch {
      // A damaged flatbuffers table points outside of the buffer.
      case e: IndexOutOfBoundsException => throw malformed("its metadata is damaged", e)
    }

  private def read(length: Long): Unit = {
    val batch = recordBatch(length)
    val bodyAt = 8L + raw.getInt(4L)
    val bodyBytes = length - bodyAt
    val rows = batch.length()
    needed = if (batch.buffersLength() == FixedBuffers) Fixed else Variable
    if (batch.nodesLength() != 3 || needed.eq(Variable) && batch.buffersLength() != VariableBuffers ||
        rows < 0 || rows > Int.MaxValue - 1) {
      throw malformed(s"$rows rows of ${batch.nodesLength()} columns in ${batch.buffersLength()} buffers")
    }
    var i = 0
    while (i < needed.length) {
      val at = batch.buffers(needed(i)).offset()
      val size = batch.buffers(needed(i)).length()
      if (at < 0 || size < 0 || at > bodyBytes - size) {
        throw malformed(s"buffer ${needed(i)} of $size bytes at $at in a body of $bodyBytes")
      }
      addresses(i) = raw.memoryAddress() + bodyAt + at
      sizes(i) = size
      i += 1
    }
    if (batch.compression() != null) decompress(batch.compression().codec())
    requireSize(Ops, rows)
    columns.rows = rows.toInt
    columns.ops = addresses(Ops)
    columns.keys = addresses(Keys)
    columns.values = addresses(Values)
    if (needed eq Fixed) {
      columns.keyWidth = requireWidth(Keys, rows, "key")
      columns.valueWidth = requireWidth(Values, rows, "value")
    } else {
      requireSize(KeyOffsets, 4 * (rows + 1))
      requireSize(ValueOffsets, 4 * (rows + 1))
      columns.keyWidth = 0
      columns.valueWidth = 0
      columns.keyOffsets = addresses(KeyOffsets)
      columns.valueOffsets = addresses(ValueOffsets)
      requireOffsets(KeyOffsets, sizes(Keys), "key")
      requireOffsets(ValueOffsets, sizes(Values), "value")
    }
    columns.hasMerges = false
    columns.hasOthersThanPuts = false
    var row = 0
    while (row < columns.rows) {
      val op = columns.op(row)
      if (op < ChangeColumns.Put || op > ChangeColumns.Merge) throw malformed(s"operation $op")
      if (op != ChangeColumns.Put) {
        columns.hasOthersThanPuts = true
        columns.hasMerges |= op == ChangeColumns.Merge
      }
      row += 1
    }
  }

  override def close(): Unit = {
    if (raw != null) raw.close()
    if (plain != null) plain.close()
    raw = null
    plain = null
  }

  private def decompress(codec: Byte): Unit = {
    if (codec != CompressionType.ZSTD) throw malformed(s"compression $codec")
    var total = 0L
    var i = 0
    while (i < needed.length) {
      if (sizes(i) > 0) total += align(uncompressedSize(i))
      i += 1
    }
    if (total > Frames.MaxDataBytes) throw malformed(s"buffers of $total bytes")
    if (plain == null || plain.capacity < total) {
      if (plain != null) plain.close()
      plain = null
      plain = ChangeBatch.allocator.buffer(total)
    }
    var used = 0L
    i = 0
    while (i < needed.length) {
      if (sizes(i) > 0) {
        val bytes = Platform.getLong(null, addresses(i))
        val source = addresses(i) + 8
        if (bytes < 0) {
          addresses(i) = source
          sizes(i) -= 8
        } else {
          val target = plain.memoryAddress() + used
          if (!ZstdCompression.decompress(source, sizes(i) - 8, target, bytes)) {
            throw malformed(s"buffer ${needed(i)} is damaged")
          }
          addresses(i) = target
          sizes(i) = bytes
          used += align(bytes)
        }
      }
      i += 1
    }
  }

  // The declared size of a compressed buffer, 0 if it is stored uncompressed. It is bounded, since memory is
  // allocated by it.
  private def uncompressedSize(i: Int): Long = {
    if (sizes(i) < 8) throw malformed(s"compressed buffer ${needed(i)} of ${sizes(i)} bytes")
    val bytes = Platform.getLong(null, addresses(i))
    if (bytes < -1 || bytes > ZstdCompression.decompressBound(sizes(i))) {
      throw malformed(s"buffer ${needed(i)} of ${sizes(i)} bytes declares $bytes uncompressed")
    }
    math.max(bytes, 0L)
  }

  private def requireSize(i: Int, bytes: Long): Unit =
    if (sizes(i) < bytes) throw malformed(s"buffer ${needed(i)} has ${sizes(i)} bytes, $bytes are needed")

  // Width of a row in a buffer without offsets; the rows must fill the buffer.
  private def requireWidth(i: Int, rows: Long, column: String): Int = {
    if (rows == 0 || sizes(i) == 0 || sizes(i) % rows != 0) {
      throw malformed(s"${sizes(i)} bytes of $rows rows that have a $column of the same length each")
    }
    (sizes(i) / rows).toInt
  }

  // Offsets must be ascending and end within the buffer.
  private def requireOffsets(i: Int, bytes: Long, column: String): Unit = {
    val offsets = addresses(i)
    var last = Platform.getInt(null, offsets)
    if (last < 0) throw malformed(s"$column of row 0")
    var row = 1
    while (row <= columns.rows) {
      val next = Platform.getInt(null, offsets + 4L * row)
      if (next < last) throw malformed(s"$column of row ${row - 1}")
      last = next
      row += 1
    }
    if (last > bytes) throw malformed(s"the last $column ends at $last of $bytes bytes")
  }

  private def recordBatch(length: Long): RecordBatch = {
    if (length < 16 || raw.getInt(0L) != -1) throw malformed("no message starts there")
    val metadata = raw.getInt(4L)
    if (metadata <= 0 || 8L + metadata > length) throw malformed(s"metadata of $metadata bytes")
    val parsed = Message.getRootAsMessage(raw.nioBuffer(8L, metadata).order(ByteOrder.LITTLE_ENDIAN))
    if (parsed.headerType() != MessageHeader.RecordBatch) throw malformed("not a record batch")
    val batch = parsed.header(new RecordBatch).asInstanceOf[RecordBatch]
    if (batch == null) throw malformed("not a record batch")
    batch
  }
}

private[statestore] object StoredMessage {
  // The buffers that are read, of the message's eight, or six if there are no offsets. Validity buffers are skipped:
  // only values may be null, those of deletes.
  private final val VariableBuffers = 8
  private final val FixedBuffers = 6
  private val Variable = Array(1, 4, 7, 3, 6)
  private val Fixed = Array(1, 3, 5)
  private final val Ops = 0
  private final val Keys = 1
  private final val Values = 2
  private final val KeyOffsets = 3
  private final val ValueOffsets = 4

  private def align(bytes: Long): Long = (bytes + 7) & ~7L

  private def malformed(problem: String, cause: Throwable = null): UnreadableChangesException =
    new UnreadableChangesException(problem, cause)
}
