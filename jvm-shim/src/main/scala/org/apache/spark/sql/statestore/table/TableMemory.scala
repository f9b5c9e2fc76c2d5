package org.apache.spark.sql.statestore.table

import java.io.{File, IOException}
import java.lang.ref.Cleaner
import java.nio.{ByteBuffer, MappedByteBuffer}
import java.nio.channels.FileChannel
import java.nio.file.{Files, StandardOpenOption}
import java.util.concurrent.atomic.AtomicLong

import org.apache.arrow.memory.util.MemoryUtil

import org.apache.spark.SparkEnv
import org.apache.spark.storage.StorageUtils
import org.apache.spark.unsafe.Platform
import org.apache.spark.util.Utils

/** Zeroed bytes at an address in an array, or, if `base` is null, in memory. */
private[table] final class Block(val base: AnyRef, val address: Long)

/**
 * Memory of the pages and index segments of one table: arrays in the heap, and, once all tables of
 * the JVM have reached the heap limit, mapped files in a local directory of Spark.
 *
 * Guarantees: a file is unlinked before it is used, so none is left behind however the JVM ends. Its
 * blocks are written before it is mapped, so that a full disk shows as an IOException and never as a
 * SIGBUS when a row is written. Blocks stay valid until `close`, which `MemoryReclaimer` calls when nothing
 * reads them any more; without it, the garbage collector unmaps the files of unreachable memory. One thread
 * allocates at a time.
 */
private[table] final class TableMemory {
  import TableMemory._

  // Must not refer to this object, or its cleaner would never run.
  private val account = new Account
  private val accounted = cleaner.register(this, account)

  private var closed = false
  private var mappings = List.empty[MappedByteBuffer]
  private var next = 0L
  private var left = 0L
  private var fileBytes = SmallestFile

  /** Allocates a block of whole words, in the heap up to its limit. */
  def allocate(bytes: Int): Block =
    if (heap.get + bytes <= limit) allocateInHeap(bytes) else allocateInFile(bytes)

  /** Allocates a small block, always in the heap. */
  def allocateInHeap(bytes: Int): Block = {
    val made = new Block(new Array[Byte](bytes), Platform.BYTE_ARRAY_OFFSET.toLong)
    account.take(bytes)
    made
  }

  /** Accounts for a heap block that is not used any more. */
  def free(base: AnyRef, bytes: Int): Unit = if (base != null) account.take(-bytes)

  /** Unmaps the files; blocks in them must not be accessed any more. Idempotent. */
  def close(): Unit = if (!closed) {
    closed = true
    val unused = mappings
    mappings = Nil
    left = 0L
    unused.foreach(StorageUtils.dispose)
    accounted.clean()
  }

  private def allocateInFile(bytes: Int): Block = {
    if (closed) throw new IllegalStateException("this table's memory is closed")
    if (left < bytes) {
      // The rest of the last file is wasted, which is little: blocks are small against files.
      val size = math.max(fileBytes, (bytes + SmallestFile - 1) / SmallestFile * SmallestFile)
      val file = map(size)
      account.map(size)
      mappings = file :: mappings
      next = MemoryUtil.getByteBufferAddress(file)
      left = size
      fileBytes = math.min(2 * fileBytes, LargestFile)
    }
    val made = new Block(null, next)
    next += bytes
    left -= bytes
    made
  }
}

private[statestore] object TableMemory {
  private final val SmallestFile = 1L << 20
  private final val LargestFile = 64L << 20

  private val cleaner = Cleaner.create()

  // Bytes of all tables in the heap and in files.
  private val heap = new AtomicLong
  private val mapped = new AtomicLong

  /** Half of the heap that the JVM may have. */
  val defaultLimit: Long = Runtime.getRuntime.maxMemory / 2

  @volatile private var limit = defaultLimit

  /** Sets the heap limit of all tables of this JVM; allocated blocks stay where they are. */
  def limitHeap(bytes: Long): Unit = limit = bytes

  /** Bytes of all mapped files. */
  def mappedBytes: Long = mapped.get

  private def map(bytes: Long): MappedByteBuffer = {
    val directory = new File(
      if (SparkEnv.get == null) System.getProperty("java.io.tmpdir") else Utils.getLocalDir(SparkEnv.get.conf))
    try {
      val path = Files.createTempFile(directory.toPath, "statestore-", ".pages")
      try {
        val channel = FileChannel.open(path, StandardOpenOption.READ, StandardOpenOption.WRITE)
        try {
          val zeros = ByteBuffer.allocateDirect(SmallestFile.toInt)
          while (channel.position() < bytes) {
            zeros.clear()
            while (zeros.hasRemaining) channel.write(zeros)
          }
          channel.map(FileChannel.MapMode.READ_WRITE, 0L, bytes)
        } finally {
          channel.close()
        }
      } finally {
        Files.delete(path)
      }
    } catch {
      case e: java.nio.channels.ClosedByInterruptException => throw e
      case e: IOException => throw new IOException(
        s"no space for state in $directory: the stores of this JVM use ${heap.get} of at most $limit bytes of heap " +
          s"(maxHeapBytes) and ${mapped.get} bytes of files there, and $bytes more could not be written: " +
          e.getMessage, e)
    }
  }

  /** Bytes of one table. */
  private final class Account extends Runnable {
    private val inHeap = new AtomicLong
    private val inFiles = new AtomicLong

    def take(bytes: Long): Unit = {
      inHeap.addAndGet(bytes)
      heap.addAndGet(bytes)
    }

    def map(bytes: Long): Unit = {
      inFiles.addAndGet(bytes)
      mapped.addAndGet(bytes)
    }

    override def run(): Unit = {
      heap.addAndGet(-inHeap.get)
      mapped.addAndGet(-inFiles.get)
    }
  }
}
