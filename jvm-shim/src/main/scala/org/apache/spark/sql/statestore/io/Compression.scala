package org.apache.spark.sql.statestore.io

import java.nio.ByteBuffer

import com.github.luben.zstd.Zstd
import net.jpountz.lz4.{LZ4Compressor, LZ4Factory}
import net.jpountz.xxhash.XXHashFactory
import org.apache.arrow.vector.ipc.message.ArrowBodyCompression
import org.apache.arrow.flatbuf.{BodyCompressionMethod, CompressionType}

/**
 * Compresses a buffer of an Arrow message.
 *
 * Guarantees: what it writes is one whole frame of its format, which any reader of Arrow decompresses.
 * Both buffers are off-heap; positions and limits stay as they are. Safe to use from several threads.
 */
private[io] sealed abstract class Compression(kind: Byte) {
  /** How a message says that its buffers are compressed. */
  val noted = new ArrowBodyCompression(kind, BodyCompressionMethod.BUFFER)

  /** The most bytes that so many may take when they are compressed. */
  def most(bytes: Int): Int

  /** Compresses all of `from` into `to`, from a position on; returns the bytes written. */
  def compress(from: ByteBuffer, to: ByteBuffer, at: Int): Int
}

private[io] object Compression {
  /** By the value of the option; None for no compression. */
  def of(name: String): Option[Compression] = name match {
    case "none" => None
    case "lz4" => Some(Lz4)
    case "zstd" => Some(ZStandard)
  }

  /** LZ4 frames of independent blocks, without checksums: streams have their own. */
  private object Lz4 extends Compression(CompressionType.LZ4_FRAME) {
    private val Magic = 0x184d2204
    private val Flags: Byte = 0x60
    private val LargestBlocks: Byte = 0x70
    private val BlockBytes = 4 << 20
    private val HeaderBytes = 7
    private val IsStored = 1 << 31

    private val compressor: LZ4Compressor = LZ4Factory.fastestInstance.fastCompressor
    private val headerCheck: Byte =
      (XXHashFactory.fastestInstance.hash32.hash(Array(Flags, LargestBlocks), 0, 2, 0) >> 8).toByte

    override def most(bytes: Int): Int =
      HeaderBytes + compressor.maxCompressedLength(bytes) + 4 * (bytes / BlockBytes + 2)

    override def compress(from: ByteBuffer, to: ByteBuffer, at: Int): Int = {
      val bytes = from.remaining
      to.putInt(at, Magic).put(at + 4, Flags).put(at + 5, LargestBlocks).put(at + 6, headerCheck)
      var out = at + HeaderBytes
      var done = 0
      while (done < bytes) {
        val block = math.min(BlockBytes, bytes - done)
        val start = from.position() + done
        var size = compressor.compress(from, start, block, to, out + 4, to.limit() - out - 4)
        if (size < block) {
          to.putInt(out, size)
        } else {
          size = block
          to.putInt(out, block | IsStored)
          to.put(out + 4, from, start, block)
        }
        out += 4 + size
        done += block
      }
      to.putInt(out, 0)
      out + 4 - at
    }
  }

  private object ZStandard extends Compression(CompressionType.ZSTD) {
    // As fast as LZ4 for rows of state, and smaller; it is read several times as fast. See docs/performance.md.
    private val Level = -2

    override def most(bytes: Int): Int = Math.toIntExact(Zstd.compressBound(bytes.toLong))

    override def compress(from: ByteBuffer, to: ByteBuffer, at: Int): Int = {
      val size = Zstd.compressDirectByteBuffer(
        to, at, to.limit() - at, from, from.position(), from.remaining, Level)
      if (Zstd.isError(size)) throw new IllegalStateException(s"zstd: ${Zstd.getErrorName(size)}")
      size.toInt
    }
  }
}
