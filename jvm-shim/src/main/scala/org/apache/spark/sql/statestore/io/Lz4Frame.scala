package org.apache.spark.sql.statestore.io

import org.apache.spark.unsafe.Platform

/**
 * Reads LZ4 frames, as Arrow compresses buffers. The library in Spark's jars reads a frame's blocks one by
 * one, and Arrow's refer to the blocks before them.
 *
 * Guarantees: nothing outside of the given memory is touched, whatever the bytes are. Up to `Slack` bytes
 * behind the source are read, and behind the target written, which therefore must be there.
 */
private[io] object Lz4Frame {
  /** Bytes that must follow source and target. */
  final val Slack = 32

  /** Most bytes that a compressed byte can stand for. */
  final val LargestRatio = 255L

  private final val Magic = 0x184d2204

  /** Decompresses a frame that must give so many bytes; false if it is no such frame. */
  def decompress(source: Long, sourceBytes: Long, target: Long, targetBytes: Long): Boolean = {
    val end = source + sourceBytes
    val targetEnd = target + targetBytes
    if (sourceBytes < 11 || Platform.getInt(null, source) != Magic) return false
    val flags = Platform.getByte(null, source + 4)
    // Version 01; a dictionary is never used.
    if ((flags & 0xc0) != 0x40 || (flags & 1) != 0) return false
    val checksumBytes = if ((flags & 0x10) != 0) 4 else 0
    var at = source + 7 + (if ((flags & 8) != 0) 8 else 0)
    var out = target
    while (true) {
      if (end - at < 4) return false
      val word = Platform.getInt(null, at)
      val bytes = (word & Int.MaxValue).toLong
      at += 4
      if (bytes == 0) return out == targetEnd
      if (bytes + checksumBytes > end - at) return false
      if (word < 0) {
        if (bytes > targetEnd - out) return false
        Platform.copyMemory(null, at, null, out, bytes)
        out += bytes
      } else {
        out = block(at, at + bytes, target, out, targetEnd)
        if (out < 0) return false
      }
      at += bytes + checksumBytes
    }
    false
  }

  // Where the output of a block ends, -1 if it is damaged. Copies go by words and may pass the end
  // of what is copied, over bytes that come later or the slack.
  private def block(source: Long, end: Long, first: Long, target: Long, targetEnd: Long): Long = {
    var in = source
    var out = target
    while (in < end) {
      val token = Platform.getByte(null, in) & 0xff
      in += 1
      var literals = (token >>> 4).toLong
      if (literals == 15) {
        var more = 255
        while (more == 255) {
          if (in >= end) return -1L
          more = Platform.getByte(null, in) & 0xff
          in += 1
          literals += more
        }
      }
      if (literals > end - in || literals > targetEnd - out) return -1L
      copyWords(in, out, literals)
      in += literals
      out += literals
      if (in < end) {
        if (end - in < 2) return -1L
        val distance = (Platform.getShort(null, in) & 0xffff).toLong
        in += 2
        var length = (token & 15).toLong
        if (length == 15) {
          var more = 255
          while (more == 255) {
            if (in >= end) return -1L
            more = Platform.getByte(null, in) & 0xff
            in += 1
            length += more
          }
        }
        length += 4
        if (distance == 0 || distance > out - first || length > targetEnd - out) return -1L
        if (distance >= 8) copyWords(out - distance, out, length) else repeat(out, distance, length)
        out += length
      }
    }
    out
  }

  private def copyWords(from: Long, to: Long, length: Long): Unit = {
    var i = 0L
    while (i < length) {
      Platform.putLong(null, to + i, Platform.getLong(null, from + i))
      i += 8
    }
  }

  // The bytes overlap within a word: the first ones go one by one, the rest from as far back as a word.
  private def repeat(out: Long, distance: Long, length: Long): Unit = {
    val single = math.min(length, 8L)
    var i = 0L
    while (i < single) {
      Platform.putByte(null, out + i, Platform.getByte(null, out + i - distance))
      i += 1
    }
    if (length > 8) {
      // A multiple of the distance, from 8 to 14 bytes; what it reaches back to is there, since the match is.
      val back = distance * ((7 + distance) / distance)
      copyWords(out + 8 - back, out + 8, length - 8)
    }
  }
}
