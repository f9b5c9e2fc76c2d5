package org.apache.spark.sql.statestore.table

import java.io.DataOutputStream
import java.nio.MappedByteBuffer
import java.nio.channels.FileChannel

import org.apache.arrow.memory.util.MemoryUtil

import org.apache.spark.storage.StorageUtils

/**
 * Memory of a table that is copied to a file: all of its blocks are in mapped regions at the end of the file.
 *
 * Guarantees: as `TableMemory`; the heap and its limit are not concerned. To be closed once the file is written.
 */
private[table] final class CopyMemory(channel: FileChannel) extends TableMemory {
  import CopyMemory._

  private var regions = Vector.empty[Region]
  private var next = 0L
  private var freeBytes = 0L
  private var total = 0L

  override def allocatePage(bytes: Int): Block = allocateInFile(bytes)

  override def allocatePageInHeap(bytes: Int): Block = allocateInFile(bytes)

  override def allocateInHeap(bytes: Int): Block = allocateInFile(bytes)

  override def freePage(base: AnyRef, bytes: Int): Unit = {}

  override def hasRoom(bytes: Int): Boolean = true

  override def isOverLimit: Boolean = false

  override def allocateInFile(bytes: Int): Block = {
    if (freeBytes < bytes) {
      // Little of the file is unused.
      val minimum = math.max(bytes.toLong, math.min(total / 4, LargestRegion))
      val size = (minimum + SmallestRegion - 1) / SmallestRegion * SmallestRegion
      val start = channel.size
      channel.position(start)
      TableMemory.writeZeros(channel, start + size)
      val mapped = channel.map(FileChannel.MapMode.READ_WRITE, start, size)
      next = MemoryUtil.getByteBufferAddress(mapped)
      freeBytes = size
      regions :+= new Region(start, size, next, mapped)
      total += size
    }
    val block = new Block(null, next)
    next += bytes
    freeBytes -= bytes
    block
  }

  /** The position of a block in the file. */
  def positionOf(block: Block): Long = {
    val region = regions.find(region => block.address >= region.address && block.address < region.address + region.size).get
    region.start + block.address - region.address
  }

  /** Writes the start, size and CRC-32C of each region. */
  def describe(out: DataOutputStream): Unit = {
    out.writeInt(regions.size)
    regions.foreach { region =>
      out.writeLong(region.start)
      out.writeLong(region.size)
      out.writeInt(LocalCopyFile.crcOf(region.mapped.duplicate()))
    }
  }

  override def close(): Unit = {
    regions.foreach(region => StorageUtils.dispose(region.mapped))
    regions = Vector.empty
    super.close()
  }
}

private object CopyMemory {
  private final val SmallestRegion = 256L << 10
  private final val LargestRegion = 64L << 20

  private final class Region(val start: Long, val size: Long, val address: Long, val mapped: MappedByteBuffer)
}
