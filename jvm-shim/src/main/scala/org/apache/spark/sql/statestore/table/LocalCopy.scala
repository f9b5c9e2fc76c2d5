package org.apache.spark.sql.statestore.table

import java.io.{ByteArrayInputStream, Closeable, DataInputStream, IOException}
import java.nio.{ByteBuffer, MappedByteBuffer}
import java.nio.channels.FileChannel
import java.nio.file.{Paths, StandardOpenOption}

import org.apache.arrow.memory.util.MemoryUtil

import org.apache.spark.storage.StorageUtils
import org.apache.spark.unsafe.Platform

/**
 * A local copy that is open, from which the tables of a load are filled.
 *
 * Guarantees: every byte is verified before it is in a table. A file that is cut, damaged, of another layout or of another
 * stream is a `DamagedCopyException`. Blocks are copied to the heap while it has room, else to files of the table or, if the
 * table does not write to them, mapped; no write of a table changes the copy.
 */
private[statestore] final class LocalCopy private (path: String, channel: FileChannel, families: Array[LocalCopy.Family])
  extends Closeable {
  import LocalCopy._

  /** The hash of a family's keys; that of the process if the copy does not have the family. */
  def keyHashOf(name: String, createdAtVersion: Long): KeyHash =
    find(name, createdAtVersion).map(_.keyHash).getOrElse(KeyHash.ofProcess)

  /** Fills the empty table of a family, unless the copy does not have it: then it was created later. */
  def fill(name: String, createdAtVersion: Long, layout: String, table: StateTable): Unit =
    find(name, createdAtVersion).foreach { family =>
      if (family.layout != layout) {
        throw new DamagedCopyException(s"$path has the column family $name with $layout as ${family.layout}")
      }
      fill(table, family)
    }

  override def close(): Unit = channel.close()

  private def find(name: String, createdAtVersion: Long): Option[Family] =
    families.find(family => family.name == name && family.createdAtVersion == createdAtVersion)

  private def fill(table: StateTable, family: Family): Unit = {
    val memory = table.records.log.memory
    var regions = Vector.empty[MappedByteBuffer]
    var usesFile = false
    try {
      family.regions.foreach(region => regions :+= map(region))
      regions.indices.foreach(i => verify(regions(i), family.regions(i)))
      def blockOf(position: Long, size: Int, copied: Option[Int => Block]): Block = {
        val region = family.regions.lastIndexWhere(_.start <= position)
        val at = position - family.regions(region).start
        val address = MemoryUtil.getByteBufferAddress(regions(region)) + at
        usesFile |= copied.isEmpty
        copied.fold(new Block(null, address)) { allocate =>
          val block = allocate(size)
          Platform.copyMemory(null, address, block.base, block.address, size.toLong)
          block
        }
      }
      // Index segments first, since each update writes to them. Small ones are always in the heap.
      def indexOf(segments: Array[Segment]): Array[IndexSegment] = segments.map { segment =>
        val inHeap = segment.size < HashIndex.SegmentBytes || memory.hasRoom(segment.size)
        val allocate = if (inHeap) memory.allocateInHeap _ else memory.allocateInFile _
        new IndexSegment(blockOf(segment.position, segment.size, Some(allocate)), segment.size, segment.depth, segment.count)
      }
      val index = indexOf(family.index)
      val groups = indexOf(family.groups)
      val pages = family.pages.map { page =>
        // The kernel cannot write changed pages of a private mapping back: rings and lists have pointers in their records.
        val isWritten = table.groups != null || table.hasLists
        val allocate =
          if (page.size <= Log.PageBytes && memory.hasRoom(page.size)) Some(memory.allocatePageInHeap _)
          else Option.when(isWritten)(memory.allocateInFile _)
        val block = blockOf(page.position, page.size, allocate)
        new LogPage(page.number, block, page.size, page.used)
      }
      if (usesFile) {
        regions.foreach(memory.adopt)
        regions = Vector.empty
      }
      new StoredTable(family.counts, family.tail, pages, index, groups).restore(table)
    } finally {
      regions.foreach(StorageUtils.dispose)
    }
  }

  private def map(region: Region): MappedByteBuffer =
    channel.map(FileChannel.MapMode.PRIVATE, region.start, region.size)

  private def verify(mapped: MappedByteBuffer, region: Region): Unit =
    if (LocalCopyFile.crcOf(mapped.duplicate()) != region.crc) {
      throw new DamagedCopyException(s"$path is damaged after byte ${region.start}")
    }
}

/** A local copy that is not what was written, or that is of something else. */
private[statestore] final class DamagedCopyException(message: String) extends IOException(message)

private[statestore] object LocalCopy {
  import LocalCopyFile.{crcOf, FooterBytes, Layout, Magic}

  /**
   * Opens a copy.
   *
   * @param streamId  the stream that it is to be of
   * @throws DamagedCopyException  if it is not a copy of that stream
   * @throws IOException           if it cannot be read
   */
  def open(path: String, streamId: String): LocalCopy = {
    val channel = FileChannel.open(Paths.get(path), StandardOpenOption.READ, StandardOpenOption.WRITE)
    try {
      val in = readDescription(channel, path)
      val copyStreamId = in.readUTF()
      if (copyStreamId != streamId) throw new DamagedCopyException(s"$path is a copy of $copyStreamId, not of $streamId")
      new LocalCopy(path, channel, Array.fill(in.readInt())(readFamily(in)))
    } catch {
      case e: Throwable =>
        channel.close()
        throw e
    }
  }

  private def readDescription(channel: FileChannel, path: String): DataInputStream = {
    def read(start: Long, size: Int): ByteBuffer = {
      val buffer = ByteBuffer.allocate(size)
      while (buffer.hasRemaining) {
        if (channel.read(buffer, start + buffer.position()) < 0) throw new DamagedCopyException(s"$path is cut")
      }
      buffer.flip()
    }
    val length = channel.size
    if (length < FooterBytes) throw new DamagedCopyException(s"$path is cut")
    val footer = read(length - FooterBytes, FooterBytes)
    val start = footer.getLong
    val size = footer.getInt
    val crc = footer.getInt
    val layout = footer.getLong
    if (footer.getLong != Magic || layout != Layout) throw new DamagedCopyException(s"$path has another layout")
    if (size < 0 || start < 0 || start + size != length - FooterBytes) throw new DamagedCopyException(s"$path is damaged at its end")
    val description = read(start, size)
    if (crcOf(description.duplicate()) != crc) throw new DamagedCopyException(s"the description in $path is damaged")
    new DataInputStream(new ByteArrayInputStream(description.array))
  }

  private def readFamily(in: DataInputStream): Family = new Family(
    in.readUTF(), in.readLong(), in.readUTF(), new KeyHash(in.readLong(), in.readLong()),
    Array.fill(5)(in.readLong()), in.readLong(),
    Array.fill(in.readInt())(new Page(in.readInt(), in.readLong(), in.readInt(), in.readInt())),
    readSegments(in), readSegments(in), Array.fill(in.readInt())(new Region(in.readLong(), in.readLong(), in.readInt())))

  private def readSegments(in: DataInputStream): Array[Segment] =
    Array.fill(in.readInt())(new Segment(in.readLong(), in.readInt(), in.readInt(), in.readInt()))

  private final class Page(val number: Int, val position: Long, val size: Int, val used: Int)

  private final class Segment(val position: Long, val size: Int, val depth: Int, val count: Int)

  private final class Region(val start: Long, val size: Long, val crc: Int)

  private final class Family(
      val name: String, val createdAtVersion: Long, val layout: String, val keyHash: KeyHash, val counts: Array[Long],
      val tail: Long, val pages: Array[Page], val index: Array[Segment], val groups: Array[Segment],
      val regions: Array[Region])
}
