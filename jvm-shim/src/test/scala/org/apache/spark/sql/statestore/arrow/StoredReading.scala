package org.apache.spark.sql.statestore.arrow

import org.apache.spark.sql.statestore.backend.CheckpointClient
import org.apache.spark.sql.statestore.table.KeyHash
import org.apache.spark.unsafe.Platform

/** Access to the decoding of stored changes, for tests in Python. */
object StoredReading {
  /** Number of loads of this JVM that the backend had to decode. */
  def decodedLoads: Long = CheckpointClient.decodedLoads.sum

  /**
   * Returns the changes in a message, each as operation, length of the key, key, length of the value and value;
   * null if it is refused. Fails if a row is outside of an uncompressed message.
   */
  def changes(message: Array[Byte], isCompressed: Boolean): Array[Byte] = {
    val stored = new StoredMessage
    try {
      val memory = stored.room(message.length.toLong)
      memory.setBytes(0L, message)
      stored.decode(message.length.toLong)
      val out = new java.io.ByteArrayOutputStream
      val data = new java.io.DataOutputStream(out)
      def write(at: Long, length: Int): Unit = {
        val from = memory.memoryAddress()
        if (!isCompressed && (length < 0 || at < from || at + length > from + message.length)) {
          throw new IllegalStateException("a row outside of its message")
        }
        val bytes = new Array[Byte](length)
        Platform.copyMemory(null, at, bytes, Platform.BYTE_ARRAY_OFFSET.toLong, length.toLong)
        data.writeInt(length)
        data.write(bytes)
      }
      val columns = stored.columns
      columns.hashKeys(KeyHash.ofProcess)
      (0 until columns.rows).foreach { row =>
        data.writeByte(columns.op(row))
        write(columns.keyAt(row), columns.keyLength(row))
        write(columns.valueAt(row), columns.valueLength(row))
      }
      out.toByteArray
    } catch {
      case _: UnreadableChangesException => null
    } finally {
      stored.close()
    }
  }
}
