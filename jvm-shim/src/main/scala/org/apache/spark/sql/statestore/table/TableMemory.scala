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
 * Memory of one table: arrays in the heap, and, once all tables of the JVM have reached the heap limit, mapped
 * files in a local directory of Spark. Log pages can be moved from the heap to files; index segments and marks of
 * superseded records, which each update writes at random, have priority for the heap.
 *
 * Guarantees: the heap limit is exceeded by a quarter at most, until other tables have moved pages, and by blocks
 * that are smaller than a page or a segment. A file is unlinked before it is used, so none is left behind however
 * the JVM ends. Its blocks are written before it is mapped, so that a full disk shows as an IOException and never
 * as a SIGBUS when a row is written. Blocks stay valid until `close`, which `RetiredMemory` calls when nothing
 * reads them any more; without it, the garbage collector unmaps the files of unreachable memory. One thread
 * allocates at a time.
 */
private[statestore] class TableMemory {
  import TableMemory._

  // Must not refer to this object, or its cleaner would never run.
  private val account = new Account
  private val accounted = cleaner.register(this, account)

  private var closed = false
  private var mappings = List.empty[MappedByteBuffer]
  private var next = 0L
  private var freeBytes = 0L
  private var fileBytes = SmallestFile

  /** Allocates a log page of whole words, in the heap up to its limit. */
  def allocatePage(bytes: Int): Block = if (hasRoom(bytes)) allocatePageInHeap(bytes) else allocateInFile(bytes)

  def allocatePageInHeap(bytes: Int): Block = {
    val page = newArray(bytes)
    account.takeForPages(bytes)
    page
  }

  /** Accounts for a log page that is not used any more. */
  def freePage(base: AnyRef, bytes: Int): Unit = if (base != null) account.takeForPages(-bytes)

  /** Allocates a block with priority for the heap, once there is room. */
  def allocateInHeap(bytes: Int): Block = {
    val block = newArray(bytes)
    take(bytes)
    block
  }

  /** Accounts for heap that the caller allocates with priority. */
  def take(bytes: Long): Unit = account.take(bytes)

  /** Accounts for a block of `allocateInHeap` that is not used any more, or for heap that was taken. */
  def free(base: AnyRef, bytes: Int): Unit = if (base != null) account.take(-bytes)

  /** True if so many bytes fit below the heap limit. */
  def hasRoom(bytes: Int): Boolean = heap.get + bytes <= limit

  /** True if another table has exceeded the heap limit. */
  def isOverLimit: Boolean = heap.get > limit

  /** True if so many bytes with priority may exceed the heap limit until other tables have moved pages. */
  def mayExceedLimit(bytes: Int): Boolean = {
    val used = heap.get
    used + bytes - limit <= limit / 4 && used - pages.get + bytes <= limit
  }

  /** Moves log pages from the heap to files, which must not be written to meanwhile; returns their addresses there. */
  def moveToFiles(arrays: Array[Array[Byte]]): Array[Long] = {
    val size = arrays.iterator.map(_.length.toLong).sum
    // A process has a limited number of mappings.
    val moved = if (size < SmallestMove) arrays.map(copyToFile) else writeFile(arrays, size)
    account.takeForPages(-size)
    moved
  }

  private def copyToFile(array: Array[Byte]): Long = {
    val copy = allocateInFile(array.length)
    Platform.copyMemory(array, Platform.BYTE_ARRAY_OFFSET.toLong, copy.base, copy.address, array.length.toLong)
    copy.address
  }

  // Written before it is mapped, a page is not faulted in, and not dirty in the mapping.
  private def writeFile(arrays: Array[Array[Byte]], size: Long): Array[Long] = {
    requireOpen()
    val file = map(size)(channel => arrays.foreach(write(channel, _)))
    mappings = file :: mappings
    account.map(size)
    arrays.scanLeft(MemoryUtil.getByteBufferAddress(file))(_ + _.length).init
  }

  /** Adds a mapped file with blocks of this memory. */
  def adopt(file: MappedByteBuffer): Unit = {
    requireOpen()
    mappings = file :: mappings
    account.map(file.capacity)
  }

  /** Unmaps the files; blocks in them must not be accessed any more. Idempotent. */
  def close(): Unit = if (!closed) {
    closed = true
    val unused = mappings
    mappings = Nil
    freeBytes = 0L
    unused.foreach(StorageUtils.dispose)
    accounted.clean()
  }

  /** Allocates a block in a file. */
  def allocateInFile(bytes: Int): Block = {
    requireOpen()
    if (freeBytes < bytes) {
      // The rest of the last file is wasted, which is little: blocks are small against files.
      val size = math.max(fileBytes, (bytes + SmallestFile - 1) / SmallestFile * SmallestFile)
      val file = map(size)(writeZeros(_, size))
      account.map(size)
      mappings = file :: mappings
      next = MemoryUtil.getByteBufferAddress(file)
      freeBytes = size
      fileBytes = math.min(2 * fileBytes, LargestFile)
    }
    val block = new Block(null, next)
    next += bytes
    freeBytes -= bytes
    block
  }

  private def requireOpen(): Unit = if (closed) throw new IllegalStateException("this table's memory is closed")
}

private[statestore] object TableMemory {
  private final val SmallestFile = 1L << 20
  private final val LargestFile = 64L << 20

  // Pages of fewer bytes are moved to files that already exist.
  private final val SmallestMove = 4L << 20

  private final val LeastSpace = 256L << 20

  private val cleaner = Cleaner.create()

  // Bytes of all tables in the heap, of their log pages there, and in files.
  private val heap = new AtomicLong
  private val pages = new AtomicLong
  private val mapped = new AtomicLong

  /** Half of the heap that the JVM may have. */
  val defaultLimit: Long = Runtime.getRuntime.maxMemory / 2

  @volatile private var most = defaultLimit
  @volatile private var available = Long.MaxValue

  /** Sets the most heap of all tables of this JVM; allocated blocks stay where they are. */
  def limitHeap(bytes: Long): Unit = most = bytes

  /** Sets the heap that all else in this JVM leaves to its tables at present, see `MemoryPressure`. */
  def limitToAvailable(bytes: Long): Unit = available = bytes

  /** The most heap of all tables of this JVM. */
  def mostHeap: Long = most

  /** The present heap limit of all tables of this JVM. */
  def heapLimit: Long = limit

  private def limit: Long = math.min(most, available)

  /** Bytes of all tables in the heap. */
  def heapBytes: Long = heap.get

  /** Bytes of all mapped files. */
  def mappedBytes: Long = mapped.get

  /** True if the disk has space for rows that are moved, beside the shuffles of Spark. */
  def hasSpace: Boolean = directory.getUsableSpace > LeastSpace

  private def newArray(bytes: Int): Block = new Block(new Array[Byte](bytes), Platform.BYTE_ARRAY_OFFSET.toLong)

  // Up to a size of the file.
  private[table] def writeZeros(to: FileChannel, bytes: Long): Unit = {
    val zeros = ByteBuffer.allocateDirect(SmallestFile.toInt)
    while (to.position() < bytes) {
      zeros.clear().limit(math.min(SmallestFile, bytes - to.position()).toInt)
      while (zeros.hasRemaining) to.write(zeros)
    }
  }

  // In pieces: a channel copies an array into a buffer of the same size first, and keeps that.
  private def write(to: FileChannel, array: Array[Byte]): Unit = {
    var at = 0
    while (at < array.length) at += to.write(ByteBuffer.wrap(array, at, math.min(array.length - at, Log.PageBytes)))
  }

  private def directory: File =
    new File(if (SparkEnv.get == null) System.getProperty("java.io.tmpdir") else Utils.getLocalDir(SparkEnv.get.conf))

  // Maps a new file of so many bytes, which `fill` writes.
  private def map(bytes: Long)(fill: FileChannel => Unit): MappedByteBuffer = {
    val directory = this.directory
    try {
      val path = Files.createTempFile(directory.toPath, "statestore-", ".pages")
      try {
        val channel = FileChannel.open(path, StandardOpenOption.READ, StandardOpenOption.WRITE)
        try {
          fill(channel)
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
    private val inPages = new AtomicLong
    private val inFiles = new AtomicLong

    def take(bytes: Long): Unit = {
      inHeap.addAndGet(bytes)
      heap.addAndGet(bytes)
    }

    def takeForPages(bytes: Long): Unit = {
      inPages.addAndGet(bytes)
      pages.addAndGet(bytes)
      take(bytes)
    }

    def map(bytes: Long): Unit = {
      inFiles.addAndGet(bytes)
      mapped.addAndGet(bytes)
    }

    override def run(): Unit = {
      heap.addAndGet(-inHeap.get)
      pages.addAndGet(-inPages.get)
      mapped.addAndGet(-inFiles.get)
    }
  }
}
