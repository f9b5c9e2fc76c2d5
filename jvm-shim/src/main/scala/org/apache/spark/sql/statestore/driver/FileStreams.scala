package org.apache.spark.sql.statestore.driver

import java.io.{BufferedOutputStream, ByteArrayOutputStream, EOFException, FileOutputStream, OutputStream, RandomAccessFile}
import java.nio.file.Files

import org.apache.hadoop.fs.{FSInputStream, Path}

import org.apache.spark.sql.statestore.backend.FileClient

/**
 * A file that is read through the backend.
 *
 * Guarantees: a missing file is reported by the constructor. Reads `ChunkBytes` at a time, so that most files
 * are one request.
 */
private[statestore] final class BackendInput(client: FileClient, path: Path, first: Array[Byte]) extends FSInputStream {
  import BackendFiles.ChunkBytes

  def this(client: FileClient, path: Path) = this(client, path, client.read(path, 0L, BackendFiles.ChunkBytes))

  private var chunk = first
  private var chunkStart = 0L
  private var position = 0L

  override def read(): Int = if (isAtEnd) -1 else {
    val byte = chunk((position - chunkStart).toInt) & 0xff
    position += 1
    byte
  }

  override def read(into: Array[Byte], offset: Int, length: Int): Int =
    if (length == 0) 0
    else if (isAtEnd) -1
    else {
      val from = (position - chunkStart).toInt
      val count = math.min(length, chunk.length - from)
      System.arraycopy(chunk, from, into, offset, count)
      position += count
      count
    }

  override def seek(to: Long): Unit = {
    if (to < 0) throw new EOFException(s"cannot seek to $to in $path")
    position = to
  }

  override def getPos: Long = position

  override def seekToNewSource(to: Long): Boolean = false

  // Fetches the chunk at the position, if another one is there.
  private def isAtEnd: Boolean = {
    if (position < chunkStart || position >= chunkStart + chunk.length) {
      val isBehindLast = chunk.length < ChunkBytes && position >= chunkStart
      if (!isBehindLast) {
        chunk = client.read(path, position, ChunkBytes)
        chunkStart = position
      }
    }
    position >= chunkStart + chunk.length
  }
}

/**
 * Content of a file that is being written: in memory, or in a temporary file if it is large.
 *
 * Guarantees: `parts` gives the whole content each time. `discard` frees the temporary file, which is unlinked before it
 * is used: it is freed however the JVM ends.
 */
private[statestore] final class FileContent extends OutputStream {
  import BackendFiles.ChunkBytes

  private val memory = new ByteArrayOutputStream
  private var spilled: RandomAccessFile = _
  private var target: OutputStream = memory

  override def write(byte: Int): Unit = {
    target.write(byte)
    spillIfLarge()
  }

  override def write(bytes: Array[Byte], offset: Int, length: Int): Unit = {
    target.write(bytes, offset, length)
    spillIfLarge()
  }

  /** Returns the content in parts of `ChunkBytes`; there is at least one. */
  def parts(): Iterator[Array[Byte]] =
    if (spilled == null) {
      Iterator.single(memory.toByteArray)
    } else {
      (0L until size by ChunkBytes.toLong).iterator.map(part)
    }

  def size: Long = if (spilled == null) memory.size.toLong else {
    target.flush()
    spilled.length
  }

  /** Returns the whole content if there are at most `most` bytes. */
  def ifSmall(most: Int): Option[Array[Byte]] =
    if (spilled == null && memory.size <= most) Some(memory.toByteArray) else None

  def discard(): Unit = {
    target.close()
    if (spilled != null) spilled.close()
  }

  private def part(start: Long): Array[Byte] = {
    val bytes = new Array[Byte](math.min(ChunkBytes.toLong, spilled.length - start).toInt)
    spilled.seek(start)
    spilled.readFully(bytes)
    spilled.seek(spilled.length)
    bytes
  }

  private def spillIfLarge(): Unit = if (spilled == null && memory.size > ChunkBytes) {
    val path = Files.createTempFile("spark-statestore-", ".file")
    // Not a file channel, which an interrupt would close.
    try spilled = new RandomAccessFile(path.toFile, "rw") finally Files.delete(path)
    target = new BufferedOutputStream(new FileOutputStream(spilled.getFD))
    memory.writeTo(target)
    memory.reset()
  }
}

private[statestore] object BackendFiles {
  /** Bytes of one request. */
  final val ChunkBytes = 8 << 20
}
