package org.apache.spark.sql.statestore.io

import org.apache.spark.unsafe.Platform

/** What loads are made of, for tests in Python. */
object StoredReading {
  private final val Guard: Byte = 77
  private final val GuardBytes = 64

  /** Loads of this JVM so far that the backend had to read. */
  def decodedLoads: Long = CheckpointClient.decodedLoads.sum

  /**
   * The changes in a message, each as operation, length of the key, key, length of the value and value; null if
   * it is refused. Fails if a row lies outside of a message that is not compressed.
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
      columns.hashKeys()
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

  /** What an LZ4 frame holds, null if it is refused; fails if memory was written that must not be. */
  def lz4(frame: Array[Byte], size: Int): Array[Byte] = {
    val source = Platform.allocateMemory(frame.length.toLong + Lz4Frame.Slack)
    val target = Platform.allocateMemory(size.toLong + Lz4Frame.Slack + GuardBytes)
    try {
      Platform.copyMemory(frame, Platform.BYTE_ARRAY_OFFSET.toLong, null, source, frame.length.toLong)
      val behind = target + size + Lz4Frame.Slack
      Platform.setMemory(null, behind, GuardBytes, Guard)
      val sound = Lz4Frame.decompress(source, frame.length.toLong, target, size.toLong)
      (0 until GuardBytes).foreach { i =>
        if (Platform.getByte(null, behind + i) != Guard) throw new IllegalStateException("written beyond its memory")
      }
      if (sound) {
        val result = new Array[Byte](size)
        Platform.copyMemory(null, target, result, Platform.BYTE_ARRAY_OFFSET.toLong, size.toLong)
        result
      } else {
        null
      }
    } finally {
      Platform.freeMemory(source)
      Platform.freeMemory(target)
    }
  }
}
