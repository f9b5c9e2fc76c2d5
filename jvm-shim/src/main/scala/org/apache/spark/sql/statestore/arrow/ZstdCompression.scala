package org.apache.spark.sql.statestore.arrow

import java.nio.ByteBuffer

import com.github.luben.zstd.Zstd
import org.apache.arrow.flatbuf.{BodyCompressionMethod, CompressionType}
import org.apache.arrow.vector.ipc.message.ArrowBodyCompression

/**
 * Compression of one buffer of an Arrow message with zstd.
 *
 * Guarantees: a compressed buffer is one zstd frame, which every Arrow implementation reads.
 * Decompression writes to the given memory only, whatever the bytes are. Thread-safe.
 */
private[statestore] object ZstdCompression {
  /** Declares in a message that its buffers are compressed. */
  val bodyCompression = new ArrowBodyCompression(CompressionType.ZSTD, BodyCompressionMethod.BUFFER)

  // Fast enough that a commit does not wait for it, see docs/performance.md.
  private final val Level = -2

  // A batch has a few MiB. What expands to more is left to the backend, whose memory is not the executor's heap.
  private final val MaxRatio = 1000L
  private final val AlwaysAllowed = 64L << 20

  /** Upper bound of the compressed size. */
  def compressBound(bytes: Int): Int = Math.toIntExact(Zstd.compressBound(bytes.toLong))

  /** Compresses what remains of `from` into `to` at a position; returns the compressed size. Both are off-heap. */
  def compress(from: ByteBuffer, to: ByteBuffer, at: Int): Int = {
    val size = Zstd.compressDirectByteBuffer(
      to, at, to.limit() - at, from, from.position(), from.remaining, Level)
    if (Zstd.isError(size)) throw new IllegalStateException(s"zstd: ${Zstd.getErrorName(size)}")
    size.toInt
  }

  /** Upper bound of the uncompressed size that is believed of a compressed buffer. */
  def decompressBound(bytes: Long): Long = math.max(bytes * MaxRatio, AlwaysAllowed)

  /** Decompresses a frame; false if it does not give exactly `targetBytes`. */
  def decompress(source: Long, sourceBytes: Long, target: Long, targetBytes: Long): Boolean =
    Zstd.decompressUnsafe(target, targetBytes, source, sourceBytes) == targetBytes
}
