package org.apache.spark.sql.statestore.table

import java.io.{File, IOException}
import java.lang.ref.Cleaner
import java.nio.{ByteBuffer, MappedByteBuffer}
import java.nio.channels.FileChannel
import java.nio.file.{Files, StandardOpenOption}
import java.util.concurrent.atomic.AtomicLong

import org.apache.arrow.memory.util.MemoryUtil

import org.apache.spark.SparkEnv
import org.apache.spark.unsafe.Platform
import org.apache.spark.util.Utils

/** Zeroed bytes at an address in an array, or, if `base` is null, in memory. */
private[table] final class Block(val base: AnyRef, val address: Long)

/**
 * What the pages and index segments of one table lie in: arrays, and once all tables of the JVM
 * have as much of the heap as they may have, mapped files in a local directory of Spark.
 *
 * Guarantees: a file has no name once it is used, so nothing is left behind however the JVM ends. Its
 * blocks are written before it is mapped: a disk that is full is told by an IOException then, and
 * never by a fault when a row is written. Who holds this object can use every block that it gave; files
 * are given back once nobody holds it. One thread allocates at a time.
 */
private[table] final class TableMemory {
  import TableMemory._

  // Must not know this object, or that would never be given back.
  private val account = new Account
  cleaner.register(this, account)

  private var files = List.empty[MappedByteBuffer]
  private var next = 0L
  private var left = 0L
  private var fileBytes = SmallestFile

  /** A block of whole words, in the heap as long as there may be more. */
  def allocate(bytes: Int): Block =
    if (heap.get + bytes <= limit) allocateInHeap(bytes) else allocateInFile(bytes)

  /** A block in the heap, for what is small. */
  def allocateInHeap(bytes: Int): Block = {
    val made = new Block(new Array[Byte](bytes), Platform.BYTE_ARRAY_OFFSET.toLong)
    account.take(bytes)
    made
  }

  /** Notes that a block is not used any more. */
  def free(base: AnyRef, bytes: Int): Unit = if (base != null) account.take(-bytes)

  /** Keeps every block in a file good as long as somebody holds it. */
  def keeper: AnyRef = files

  private def allocateInFile(bytes: Int): Block = {
    if (left < bytes) {
      // What is left of the last file is not worth much: blocks are small against files.
      val size = math.max(fileBytes, (bytes + SmallestFile - 1) / SmallestFile * SmallestFile)
      val file = map(size)
      account.map(size)
      files = file :: files
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
  private final val WorthCollecting = 1L << 30

  private val cleaner = Cleaner.create()

  // Of all tables: bytes in the heap, and bytes of files.
  private val heap = new AtomicLong
  private val mapped = new AtomicLong

  /** Half of the heap that the JVM may have. */
  val defaultLimit: Long = Runtime.getRuntime.maxMemory / 2

  @volatile private var limit = defaultLimit

  // Files are given back by the garbage collector, which does not know how large they are.
  private var collectAt = WorthCollecting
  private var collected = false

  /** What all tables of this JVM may have of its heap; what they have stays where it is. */
  def limitHeap(bytes: Long): Unit = limit = bytes

  /** Bytes of all files that are mapped. */
  def mappedBytes: Long = mapped.get

  private def map(bytes: Long): MappedByteBuffer = {
    collectIfWorth()
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
        s"no room for state in $directory: the stores of this JVM have ${heap.get} bytes of heap of at most $limit " +
          s"(maxHeapBytes) and ${mapped.get} bytes in files there, and $bytes more could not be written: ${e.getMessage}", e)
    }
  }

  private def collectIfWorth(): Unit = synchronized {
    if (collected) {
      // By now it is known what the collection gave back.
      collectAt = math.max(WorthCollecting, 2 * mapped.get)
      collected = false
    }
    if (mapped.get > collectAt) {
      System.gc()
      collected = true
    }
  }

  /** What one table has. */
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
