package org.apache.spark.sql.statestore.bench

import java.lang.management.{BufferPoolMXBean, ManagementFactory}
import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.file.{Files, Path, StandardOpenOption}

import scala.jdk.CollectionConverters._

/** Baseline measurements of the machine without a store. Times are in nanoseconds. */
object Machine {

  /** Copies so many bytes, and writes the copy to a new file with one system call. */
  def copyAndWrite(bytes: Int, directory: String): Long = {
    val source = noise(bytes)
    val path = Path.of(directory, "copied")
    val channel = FileChannel.open(path, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)
    // Pages that are there already, as a store has them.
    val copy = ByteBuffer.allocateDirect(bytes)
    copy.put(source).clear()
    try {
      val start = System.nanoTime()
      copy.put(source).flip()
      val written = channel.write(copy)
      val nanos = System.nanoTime() - start
      require(written == bytes, s"one call wrote $written bytes of $bytes")
      nanos
    } finally {
      channel.close()
      Files.delete(path)
    }
  }

  /** Writes a new file of so many bytes in each of so many threads at once. */
  def writeConcurrently(threads: Int, bytes: Int, directory: String, sync: Boolean): Long = {
    val source = noise(bytes)
    val sources = Array.fill(threads)(ByteBuffer.allocateDirect(bytes).put(source).flip())
    val paths = Array.tabulate(threads)(thread => Path.of(directory, s"written-$thread"))
    try Crowd.run(threads) { thread =>
      val channel = FileChannel.open(paths(thread), StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)
      try {
        while (sources(thread).hasRemaining) channel.write(sources(thread))
        if (sync) channel.force(true)
      } finally {
        channel.close()
      }
    } finally {
      paths.foreach(Files.deleteIfExists)
    }
  }

  /** Bytes of the heap that are reachable, and of buffers outside of it. */
  def usedMemory(): Array[Long] = {
    var last = Long.MaxValue
    var used = Long.MaxValue - 1
    var collections = 0
    // Memory that cleaners refer to is freed by a later collection.
    while (collections < 4 || used < last - (last >> 8) && collections < 12) {
      System.gc()
      Thread.sleep(100)
      last = used
      used = ManagementFactory.getMemoryMXBean.getHeapMemoryUsage.getUsed
      collections += 1
    }
    val buffers = ManagementFactory.getPlatformMXBeans(classOf[BufferPoolMXBean]).asScala.map(_.getMemoryUsed)
    Array(used, buffers.sum)
  }

  private def noise(bytes: Int): Array[Byte] = {
    val made = new Array[Byte](bytes)
    new java.util.Random(bytes).nextBytes(made)
    made
  }
}
