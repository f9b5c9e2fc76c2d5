package org.apache.spark.sql.statestore.io

import java.nio.ByteOrder

import org.apache.arrow.flatbuf.{Message, MessageHeader, RecordBatch}
import org.apache.arrow.memory.ArrowBuf

import org.apache.spark.sql.statestore.BackendException
import org.apache.spark.sql.statestore.table.ChangeSink
import org.apache.spark.unsafe.Platform

/**
 * Hands on an Arrow record batch of changes, schema version 2, to who takes them. Every buffer's place and
 * every row's place is checked against the message before it is read, since what lies outside of
 * it is not ours to read.
 */
private[io] object ChangeReader {
  def apply(message: ArrowBuf, length: Long, to: ChangeSink): Long = {
    val batch = recordBatch(message, length)
    val bodyAt = 8L + metadataBytes(message)
    val bodyBytes = length - bodyAt
    val rows = batch.length()
    if (batch.nodesLength() != 3 || batch.buffersLength() != 8 || rows < 0 || batch.compression() != null) {
      throw malformed(s"${batch.nodesLength()} columns in ${batch.buffersLength()} buffers")
    }
    def address(buffer: Int, needed: Long): Long = {
      val at = batch.buffers(buffer).offset()
      val size = batch.buffers(buffer).length()
      if (at < 0 || size < needed || at + size > bodyBytes) {
        throw malformed(s"buffer $buffer of $size bytes at $at in a body of $bodyBytes")
      }
      message.memoryAddress() + bodyAt + at
    }
    val ops = address(1, rows)
    val keyOffsets = address(3, 4 * (rows + 1))
    val keyBytes = batch.buffers(4).length()
    val keys = address(4, 0)
    val valueOffsets = address(6, 4 * (rows + 1))
    val valueBytes = batch.buffers(7).length()
    val values = address(7, 0)

    var row = 0L
    while (row < rows) {
      val keyAt = Platform.getInt(null, keyOffsets + 4 * row)
      val keyEnd = Platform.getInt(null, keyOffsets + 4 * row + 4)
      if (keyAt < 0 || keyEnd < keyAt || keyEnd > keyBytes) throw malformed(s"key of row $row")
      Platform.getByte(null, ops + row) match {
        case op @ (ChangeBatch.Put | ChangeBatch.Append) =>
          val valueAt = Platform.getInt(null, valueOffsets + 4 * row)
          val valueEnd = Platform.getInt(null, valueOffsets + 4 * row + 4)
          if (valueAt < 0 || valueEnd < valueAt || valueEnd > valueBytes) {
            throw malformed(s"value of row $row")
          }
          if (op == ChangeBatch.Put) {
            to.put(null, keys + keyAt, keyEnd - keyAt, null, values + valueAt, valueEnd - valueAt)
          } else {
            if (!to.hasLists) throw malformed("a further value where a key has one")
            to.add(null, keys + keyAt, keyEnd - keyAt, null, values + valueAt, valueEnd - valueAt)
          }
        case ChangeBatch.Remove =>
          to.remove(null, keys + keyAt, keyEnd - keyAt)
        case op =>
          throw malformed(s"operation $op")
      }
      row += 1
    }
    rows
  }

  private def metadataBytes(message: ArrowBuf): Int = message.getInt(4L)

  private def recordBatch(message: ArrowBuf, length: Long): RecordBatch = {
    if (length < 16 || message.getInt(0L) != -1) throw malformed("no message starts there")
    val metadata = metadataBytes(message)
    if (metadata <= 0 || 8L + metadata > length) throw malformed(s"metadata of $metadata bytes")
    val parsed = Message.getRootAsMessage(
      message.nioBuffer(8L, metadata).order(ByteOrder.LITTLE_ENDIAN))
    if (parsed.headerType() != MessageHeader.RecordBatch) throw malformed("not a record batch")
    parsed.header(new RecordBatch).asInstanceOf[RecordBatch]
  }

  private def malformed(what: String): BackendException =
    new BackendException("Protocol", s"the backend sent changes that cannot be read: $what")
}
