package org.apache.spark.sql.statestore.arrow

import java.io.Closeable
import java.nio.{ByteBuffer, ByteOrder}
import java.util
import java.util.zip.CRC32

import org.apache.arrow.memory.{ArrowBuf, BufferAllocator}
import org.apache.arrow.vector.compression.NoCompressionCodec
import org.apache.arrow.vector.ipc.message.{ArrowBodyCompression, ArrowFieldNode, ArrowRecordBatch, IpcOption,
  MessageSerializer}

import org.apache.spark.sql.statestore.backend.Frames
import org.apache.spark.sql.statestore.table.{LogScan, Record}
import org.apache.spark.sql.util.ArrowUtils
import org.apache.spark.unsafe.Platform

/**
 * One encoded Arrow record batch of changes: op (uint8), key (binary), value (binary, null for a delete).
 * If all keys have one length and all values have one, the columns are of Arrow's fixed-size binary, without
 * offsets, which compression can hardly shrink. All buffers are in one block of off-heap memory, laid out as
 * the body of the message: the message is stored as it is, and `checksum` is that of its bytes. `close` frees
 * the memory.
 */
private[statestore] final class ChangeBatch(
    rows: Int, nulls: Int, body: ArrowBuf, buffers: util.List[ArrowBuf], compressed: ArrowBodyCompression)
  extends Closeable {

  private val bodyBytes = body.writerIndex()
  private val metadata: ByteBuffer = {
    val nodes = util.List.of(
      new ArrowFieldNode(rows.toLong, 0L),
      new ArrowFieldNode(rows.toLong, 0L),
      new ArrowFieldNode(rows.toLong, nulls.toLong))
    val batch = new ArrowRecordBatch(rows, nodes, buffers, compressed)
    try MessageSerializer.serializeMetadata(batch, IpcOption.DEFAULT) finally batch.close()
  }
  // Continuation marker, metadata length and metadata, padded so that the body starts aligned.
  private val padded = (metadata.remaining + 8 + 7) / 8 * 8 - 8

  def messageBytes: Long = 8L + padded + bodyBytes

  /** The bytes of the message before its body. */
  private val head: ByteBuffer = {
    val buffer = ByteBuffer.allocate(8 + padded).order(ByteOrder.LITTLE_ENDIAN)
    buffer.putInt(MessageSerializer.IPC_CONTINUATION_TOKEN).putInt(padded).put(metadata)
    buffer.rewind()
  }

  /** CRC-32 of the message. */
  val checksum: Int = {
    val crc = new CRC32
    crc.update(head.array)
    crc.update(body.nioBuffer(0L, bodyBytes.toInt))
    crc.getValue.toInt
  }

  def addTo(outgoing: util.List[ByteBuffer]): Unit = {
    outgoing.add(head.duplicate())
    outgoing.add(body.nioBuffer(0L, bodyBytes.toInt))
  }

  override def close(): Unit = body.close()
}

private[statestore] object ChangeBatch {
  /** The value replaces all values of its key. */
  final val Put: Byte = 0

  /** The key is deleted. */
  final val Delete: Byte = 1

  /** The value is appended to those of its key. */
  final val Merge: Byte = 2

  /** A batch is sent once it has so many rows or bytes. */
  final val TargetRows = 1 << 16
  final val TargetBytes: Long = 4L << 20

  /** The same for a delta: smaller, so that encoding overlaps with sending and stays in the processor's cache. */
  final val DeltaRows = 1 << 14
  final val DeltaBytes: Long = 1L << 20

  /** Compressing less than this costs more than it saves. */
  final val SmallestCompressed = 1024L

  /** Larger batches are not compressed, which needs the memory twice. */
  final val LargestCompressed = 256L << 20

  /** The largest record of a row that a batch has room for, beside the rows before it and what describes them. */
  final val LargestRecord: Int = Int.MaxValue - (16 << 20)

  private val NotCompressed = -1L

  /**
   * Encodes a batch as it is stored. Takes ownership of `body`.
   *
   * @param starts, sizes  positions and sizes of its buffers in the body
   */
  def encode(
      rows: Int, nulls: Int, body: ArrowBuf, starts: Array[Long], sizes: Array[Long],
      compressed: Boolean): ChangeBatch = {
    val smaller =
      if (compressed && body.writerIndex() >= SmallestCompressed) compress(rows, nulls, body, starts, sizes) else None
    smaller match {
      case Some(batch) =>
        body.close()
        batch
      case None =>
        new ChangeBatch(rows, nulls, body, slices(body, starts, sizes), NoCompressionCodec.DEFAULT_BODY_COMPRESSION)
    }
  }

  // None if compression does not make it smaller.
  private def compress(
      rows: Int, nulls: Int, body: ArrowBuf, starts: Array[Long], sizes: Array[Long]): Option[ChangeBatch] = {
    if (body.writerIndex() > LargestCompressed) return None
    val most = sizes.foldLeft(0L) { (sum, size) =>
      sum + 16 + math.max(size, ZstdCompression.compressBound(size.toInt).toLong)
    }
    val packed = allocator.buffer(most)
    var isComplete = false
    try {
      val from = body.nioBuffer(0L, body.writerIndex().toInt)
      val to = packed.nioBuffer(0L, most.toInt).order(ByteOrder.LITTLE_ENDIAN)
      val offsets = new Array[Long](starts.length)
      val lengths = new Array[Long](starts.length)
      var at = 0
      var i = 0
      while (i < starts.length) {
        offsets(i) = at.toLong
        if (sizes(i) > 0) {
          from.limit((starts(i) + sizes(i)).toInt).position(starts(i).toInt)
          var size = ZstdCompression.compress(from, to, at + 8)
          if (size < sizes(i)) {
            to.putLong(at, sizes(i))
          } else {
            size = sizes(i).toInt
            to.putLong(at, NotCompressed)
            to.put(at + 8, from, from.position(), size)
          }
          lengths(i) = 8L + size
          at += 8 + size
          while ((at & 7) != 0) {
            to.put(at, 0.toByte)
            at += 1
          }
        }
        i += 1
      }
      if (at < body.writerIndex()) {
        packed.writerIndex(at.toLong)
        val batch =
          new ChangeBatch(rows, nulls, packed, slices(packed, offsets, lengths), ZstdCompression.bodyCompression)
        isComplete = true
        Some(batch)
      } else {
        None
      }
    } finally {
      if (!isComplete) packed.close()
    }
  }

  private def slices(buffer: ArrowBuf, starts: Array[Long], sizes: Array[Long]): util.List[ArrowBuf] = {
    val list = new util.ArrayList[ArrowBuf](starts.length)
    starts.indices.foreach(i => list.add(buffer.slice(starts(i), sizes(i))))
    list
  }

  lazy val allocator: BufferAllocator =
    ArrowUtils.rootAllocator.newChildAllocator("spark-statestore", 0L, Long.MaxValue)
}

/** Predicate that selects the records of a log to send. */
private[statestore] sealed trait RecordSelection {
  def selects(records: LogScan): Boolean
}

private[statestore] object RecordSelection {
  /** Selects the rows that are alive at the end of the view: a full snapshot. */
  object Live extends RecordSelection {
    override def selects(records: LogScan): Boolean =
      (records.kind == Record.Row || records.kind == Record.Append) && records.isAlive
  }

  /**
   * Selects the net changes after a committed tail: the last record of each value. A key that was put and
   * removed since is no change; `existed` returns whether a record's key had a row at the tail. A key that was
   * removed, and to which values were merged since, is removed and gets them.
   */
  final class Changes(existed: LogScan => Boolean) extends RecordSelection {
    override def selects(records: LogScan): Boolean =
      records.kind match {
        case Record.Row | Record.Append => records.isAlive
        case Record.Tombstone => (records.isAlive || records.precedesMerge) && existed(records)
        case _ => false
      }
  }
}

/** Encoder of the selected records of a scan into batches of bounded size. */
private[statestore] final class ChangeBatches(
    scan: () => LogScan, selection: RecordSelection, compressed: Boolean) {
  import ChangeBatch._

  private val mostRows = if (selection eq RecordSelection.Live) TargetRows else DeltaRows
  private val mostBytes = if (selection eq RecordSelection.Live) TargetBytes else DeltaBytes
  private val measuring = scan()
  private val filling = scan()
  private var measured = false

  // State of the batch that was measured and is not filled yet.
  private var rows = 0
  private var nulls = 0
  private var keyBytes = 0L
  private var valueBytes = 0L

  // Length of every key, or of every value; 0 if lengths differ.
  private var keyWidth = 0
  private var valueWidth = 0

  /** The next batch, null when there is none. The caller closes it. */
  def next(): ChangeBatch = {
    measure()
    if (rows == 0) null else fill()
  }

  private def measure(): Unit = {
    rows = 0
    nulls = 0
    keyBytes = 0L
    valueBytes = 0L
    while (!measured && rows < mostRows && keyBytes + valueBytes < mostBytes) {
      if (!measuring.advance()) {
        measured = true
      } else if (selection.selects(measuring)) {
        val keyLength = measuring.keyLength
        if (rows == 0) keyWidth = keyLength
        else if (keyWidth != keyLength) keyWidth = 0
        keyBytes += keyLength
        if (measuring.kind == Record.Tombstone) {
          nulls += 1
        } else {
          val valueLength = measuring.valueLength
          if (rows == nulls) valueWidth = valueLength
          else if (valueWidth != valueLength) valueWidth = 0
          valueBytes += valueLength
        }
        rows += 1
      }
    }
  }

  // A removal is then stored instead of a value; all of them together no more than offsets would.
  private def isFixed: Boolean =
    keyWidth > 0 && valueWidth > 0 && nulls < rows && nulls.toLong * valueWidth <= 8L * rows

  private def fill(): ChangeBatch = {
    val fixed = isFixed
    val offsetBytes = if (fixed) 0L else 4L * (rows + 1)
    val placeBytes = if (fixed) rows.toLong * valueWidth else valueBytes
    val bitmapBytes = if (nulls == 0) 0L else (rows + 7L) / 8
    val opAt = 0L
    val keyOffsetsAt = align(opAt + rows)
    val keysAt = align(keyOffsetsAt + offsetBytes)
    val bitmapAt = align(keysAt + keyBytes)
    val valueOffsetsAt = align(bitmapAt + bitmapBytes)
    val valuesAt = align(valueOffsetsAt + offsetBytes)
    val total = align(valuesAt + placeBytes)
    if (total > Frames.MaxDataBytes - (1 << 20)) {
      throw new IllegalArgumentException(
        s"a state row of $total bytes cannot be checkpointed: one row must stay below 2 GiB")
    }
    val body = allocator.buffer(total)
    try {
      val base = body.memoryAddress()
      // Off-heap memory comes unwiped; padding and bitmap must not carry what was there before.
      Platform.setMemory(null, base + bitmapAt, bitmapBytes, 0)
      copyRows(fixed, placeBytes, base, opAt, keyOffsetsAt, keysAt, bitmapAt, valueOffsetsAt, valuesAt)
      pad(base, opAt + rows, keyOffsetsAt)
      pad(base, keyOffsetsAt + offsetBytes, keysAt)
      pad(base, keysAt + keyBytes, bitmapAt)
      pad(base, bitmapAt + bitmapBytes, valueOffsetsAt)
      pad(base, valueOffsetsAt + offsetBytes, valuesAt)
      pad(base, valuesAt + placeBytes, total)
      body.writerIndex(total)
      // Validity, then the rest, column by column.
      val starts =
        if (fixed) Array(0L, opAt, 0L, keysAt, bitmapAt, valuesAt)
        else Array(0L, opAt, 0L, keyOffsetsAt, keysAt, bitmapAt, valueOffsetsAt, valuesAt)
      val sizes =
        if (fixed) Array(0L, rows.toLong, 0L, keyBytes, bitmapBytes, placeBytes)
        else Array(0L, rows.toLong, 0L, offsetBytes, keyBytes, bitmapBytes, offsetBytes, placeBytes)
      encode(rows, nulls, body, starts, sizes, compressed)
    } catch {
      case e: Throwable =>
        body.close()
        throw e
    }
  }

  private def copyRows(
      fixed: Boolean, placeBytes: Long, base: Long, opAt: Long, keyOffsetsAt: Long, keysAt: Long,
      bitmapAt: Long, valueOffsetsAt: Long, valuesAt: Long): Unit = {
    var row = 0
    var key = 0
    var value = 0
    if (!fixed) {
      Platform.putInt(null, base + keyOffsetsAt, 0)
      Platform.putInt(null, base + valueOffsetsAt, 0)
    }
    while (row < rows) {
      // Both scans select the same records, since liveness at the end of a view never changes.
      if (!filling.advance()) throw scansDiffer()
      if (selection.selects(filling)) {
        val keyLength = filling.keyLength
        // Guards against writing beyond the body, should the two scans differ.
        if (key.toLong + keyLength > keyBytes || fixed && keyLength != keyWidth) throw scansDiffer()
        Platform.copyMemory(filling.page, filling.keyAddress, null, base + keysAt + key, keyLength.toLong)
        key += keyLength
        if (filling.kind == Record.Tombstone) {
          Platform.putByte(null, base + opAt + row, Delete)
          if (fixed) {
            if (value.toLong + valueWidth > placeBytes) throw scansDiffer()
            Platform.setMemory(null, base + valuesAt + value, valueWidth.toLong, 0)
            value += valueWidth
          }
        } else {
          Platform.putByte(null, base + opAt + row, if (filling.isMerge) Merge else Put)
          val valueLength = filling.valueLength
          if (value.toLong + valueLength > placeBytes || fixed && valueLength != valueWidth) throw scansDiffer()
          Platform.copyMemory(
            filling.page, filling.valueAddress, null, base + valuesAt + value, valueLength.toLong)
          value += valueLength
          if (nulls > 0) {
            val at = base + bitmapAt + (row >> 3)
            Platform.putByte(null, at, (Platform.getByte(null, at) | 1 << (row & 7)).toByte)
          }
        }
        row += 1
        if (!fixed) {
          Platform.putInt(null, base + keyOffsetsAt + 4L * row, key)
          Platform.putInt(null, base + valueOffsetsAt + 4L * row, value)
        }
      }
    }
  }

  private def scansDiffer(): IllegalStateException =
    new IllegalStateException("the log changed behind the end of a view while it was read")

  private def pad(base: Long, from: Long, to: Long): Unit =
    if (to > from) Platform.setMemory(null, base + from, to - from, 0)

  private def align(bytes: Long): Long = (bytes + 7) & ~7L
}
