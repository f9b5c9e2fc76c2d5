package org.apache.spark.sql.statestore.io

import java.io.Closeable
import java.nio.ByteOrder

import com.github.luben.zstd.Zstd
import org.apache.arrow.flatbuf.{CompressionType, Message, MessageHeader, RecordBatch}
import org.apache.arrow.memory.ArrowBuf

import org.apache.spark.sql.statestore.BackendException
import org.apache.spark.sql.statestore.table.ChangeColumns
import org.apache.spark.unsafe.Platform

/** Changes that cannot be read as they are stored; the backend may be able to, or says what is wrong. */
private[io] final class UnreadableChangesException(what: String, cause: Throwable = null)
  extends BackendException("Protocol", s"the backend sent changes that cannot be read: $what", cause)

/**
 * Memory for one Arrow record batch of changes, up to format version 3, and for what its buffers are when they
 * are not compressed any more; used again for the next one.
 *
 * Guarantees: every buffer's place and every row's place is checked before `columns` shows it, since what
 * lies outside of the memory is not ours to read. That holds for whatever bytes arrive, also before
 * their checksum is known.
 */
private[io] final class StoredMessage extends Closeable {
  import StoredMessage._

  private var raw: ArrowBuf = _
  private var plain: ArrowBuf = _

  // Which of the message's buffers are looked at: where they lie, and their bytes.
  private var needed = Variable
  private val addresses = new Array[Long](Variable.length)
  private val sizes = new Array[Long](Variable.length)

  /** The changes, once `decode` has returned. */
  val columns = new ChangeColumns

  /** Which of the version's states the changes are of, by position. */
  var state = 0

  /** Number of the stream that the message is of, from 0. */
  var stream = 0

  /** Memory for a message of so many bytes, to be filled. */
  def room(bytes: Long): ArrowBuf = {
    if (bytes < 0 || bytes > Frames.MaxDataBytes - Lz4Frame.Slack) throw malformed(s"a message of $bytes bytes")
    if (raw == null || raw.capacity < bytes + Lz4Frame.Slack) {
      if (raw != null) raw.close()
      raw = null
      raw = ChangeBatch.allocator.buffer(bytes + Lz4Frame.Slack)
    }
    raw
  }

  /** Makes columns of the message of so many bytes that was put into the memory. */
  def decode(length: Long): Unit =
    try read(length) catch {
      // What a damaged table of the metadata points at.
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
    columns.hasAppends = false
    columns.hasOthersThanPuts = false
    var row = 0
    while (row < columns.rows) {
      val op = columns.op(row)
      if (op < ChangeColumns.Put || op > ChangeColumns.Append) throw malformed(s"operation $op")
      if (op != ChangeColumns.Put) {
        columns.hasOthersThanPuts = true
        columns.hasAppends |= op == ChangeColumns.Append
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
    var total = 0L
    var i = 0
    while (i < needed.length) {
      if (sizes(i) > 0) total += align(plainSize(i, codec)) + Lz4Frame.Slack
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
          val sound =
            if (codec == CompressionType.LZ4_FRAME) Lz4Frame.decompress(source, sizes(i) - 8, target, bytes)
            else Zstd.decompressUnsafe(target, bytes, source, sizes(i) - 8) == bytes
          if (!sound) throw malformed(s"buffer ${needed(i)} is damaged")
          addresses(i) = target
          sizes(i) = bytes
          used += align(bytes) + Lz4Frame.Slack
        }
      }
      i += 1
    }
  }

  // What a compressed buffer says it takes, 0 if it is stored as it is. More than its bytes can stand for is not believed.
  private def plainSize(i: Int, codec: Byte): Long = {
    if (sizes(i) < 8) throw malformed(s"compressed buffer ${needed(i)} of ${sizes(i)} bytes")
    val bytes = Platform.getLong(null, addresses(i))
    val most = codec match {
      case CompressionType.LZ4_FRAME => sizes(i) * Lz4Frame.LargestRatio
      case CompressionType.ZSTD => math.max(sizes(i) * ZstdRatio, ZstdBytes)
      case other => throw malformed(s"compression $other")
    }
    if (bytes < -1 || bytes > most) throw malformed(s"buffer ${needed(i)} of ${sizes(i)} bytes stands for $bytes")
    math.max(bytes, 0L)
  }

  private def requireSize(i: Int, bytes: Long): Unit =
    if (sizes(i) < bytes) throw malformed(s"buffer ${needed(i)} has ${sizes(i)} bytes, $bytes are needed")

  // What each row takes of a buffer that has no offsets, all of it: each row then lies in it.
  private def requireWidth(i: Int, rows: Long, what: String): Int = {
    if (rows == 0 || sizes(i) == 0 || sizes(i) % rows != 0) {
      throw malformed(s"${sizes(i)} bytes of $rows rows that have a $what of the same length each")
    }
    (sizes(i) / rows).toInt
  }

  // Offsets that do not fall, from 0 on, and end within the bytes: each row then lies in them.
  private def requireOffsets(i: Int, bytes: Long, what: String): Unit = {
    val offsets = addresses(i)
    var last = Platform.getInt(null, offsets)
    if (last < 0) throw malformed(s"$what of row 0")
    var row = 1
    while (row <= columns.rows) {
      val next = Platform.getInt(null, offsets + 4L * row)
      if (next < last) throw malformed(s"$what of row ${row - 1}")
      last = next
      row += 1
    }
    if (last > bytes) throw malformed(s"the last $what ends at $last of $bytes bytes")
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

private[io] object StoredMessage {
  // The buffers that are looked at, of the message's eight, or six where there are no offsets: only values may
  // be null, which operations tell too.
  private final val VariableBuffers = 8
  private final val FixedBuffers = 6
  private val Variable = Array(1, 4, 7, 3, 6)
  private val Fixed = Array(1, 3, 5)
  private final val Ops = 0
  private final val Keys = 1
  private final val Values = 2
  private final val KeyOffsets = 3
  private final val ValueOffsets = 4

  // Batches are of a few MiB; more than this is left to the backend, which need not fear for a heap.
  private final val ZstdRatio = 1000L
  private final val ZstdBytes = 64L << 20

  private def align(bytes: Long): Long = (bytes + 7) & ~7L

  private def malformed(what: String, cause: Throwable = null): UnreadableChangesException =
    new UnreadableChangesException(what, cause)
}
