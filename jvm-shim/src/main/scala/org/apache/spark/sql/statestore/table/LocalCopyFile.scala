package org.apache.spark.sql.statestore.table

import java.io.{ByteArrayOutputStream, DataOutputStream}
import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.file.{Files, Path, Paths, StandardCopyOption, StandardOpenOption}
import java.nio.file.attribute.PosixFilePermissions
import java.util.zip.CRC32C

/**
 * A column family of a store at a version, of which a local copy is made.
 *
 * @param layout  see `FamilySchema.layout`
 */
private[statestore] final class CopiedFamily(
    val name: String, val createdAtVersion: Long, val layout: String, val table: StateTable, val content: TableSnapshot)

/**
 * Format and writer of local copies: files with the tables of a store as they are in memory, at the version to which one
 * stream leads. A local copy is no part of the checkpoint; only processes of the same host and release read it.
 *
 * {{{
 *   memory of each family: pages of its log, segments of its indexes
 *   description: of the stream, and of each family
 *   footer: start of the description (8), its size (4), its CRC-32C (4), layout (8), magic number (8)
 * }}}
 *
 * Guarantees: a file at its path was written completely.
 */
private[statestore] object LocalCopyFile {
  private[table] final val Magic = 0x89535354490d0a1aL

  /** Changes with the layout of records, of the index or of this file. */
  private[table] final val Layout = 1L

  private[table] final val FooterBytes = 32

  /**
   * Writes a copy of families at their snapshots, which are not rolled back meanwhile.
   *
   * @param streamId  the stream that leads to the version
   * @throws java.io.IOException  if the disk has no space, or the directory cannot be written to
   */
  def write(path: String, streamId: String, families: Seq[CopiedFamily]): Unit = {
    val file = Paths.get(path)
    val unfinished = Files.createTempFile(file.getParent, file.getFileName.toString + ".", ".tmp",
      PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------")))
    try {
      writeTo(unfinished, streamId, families)
      Files.move(unfinished, file, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING)
    } finally {
      Files.deleteIfExists(unfinished)
    }
  }

  private def writeTo(file: Path, streamId: String, families: Seq[CopiedFamily]): Unit = {
    val channel = FileChannel.open(file, StandardOpenOption.READ, StandardOpenOption.WRITE)
    try {
      val bytes = new ByteArrayOutputStream
      val out = new DataOutputStream(bytes)
      out.writeUTF(streamId)
      out.writeInt(families.size)
      families.foreach(write(_, channel, out))
      finish(channel, bytes.toByteArray)
    } finally {
      channel.close()
    }
  }

  private def write(family: CopiedFamily, channel: FileChannel, out: DataOutputStream): Unit = {
    val from = family.table
    val memory = new CopyMemory(channel)
    try {
      // Rows of an ordered table are copied in key order.
      val to = new StateTable(
        from.keyFields, from.valueFields, from.hasLists, from.prefix.map(_.copy()), None, from.keyHash, memory)
      new TableCompaction(from, family.content, to).run()
      if (to.numKeys != family.content.keys || to.numValues != family.content.values) {
        throw new IllegalStateException(s"copying ${family.content.keys} keys and ${family.content.values} values of " +
          s"${family.name} made ${to.numKeys} and ${to.numValues}")
      }
      out.writeUTF(family.name)
      out.writeLong(family.createdAtVersion)
      out.writeUTF(family.layout)
      out.writeLong(from.keyHash.seed)
      out.writeLong(from.keyHash.secret)
      describe(StoredTable.of(to), memory, out)
      memory.describe(out)
    } finally {
      memory.close()
    }
  }

  private def describe(table: StoredTable, memory: CopyMemory, out: DataOutputStream): Unit = {
    table.counts.foreach(out.writeLong)
    out.writeLong(table.tail)
    out.writeInt(table.pages.length)
    table.pages.foreach { page =>
      out.writeInt(page.number)
      out.writeLong(memory.positionOf(page.block))
      out.writeInt(page.size)
      out.writeInt(page.used)
    }
    Seq(table.index, table.groups).foreach { segments =>
      out.writeInt(segments.length)
      segments.foreach { segment =>
        out.writeLong(memory.positionOf(segment.block))
        out.writeInt(segment.size)
        out.writeInt(segment.depth)
        out.writeInt(segment.count)
      }
    }
  }

  private[table] def crcOf(bytes: ByteBuffer): Int = {
    val checksum = new CRC32C
    checksum.update(bytes)
    checksum.getValue.toInt
  }

  private def finish(channel: FileChannel, description: Array[Byte]): Unit = {
    val start = channel.size
    val end = ByteBuffer.allocate(description.length + FooterBytes).put(description)
      .putLong(start).putInt(description.length).putInt(crcOf(ByteBuffer.wrap(description))).putLong(Layout).putLong(Magic).flip()
    channel.position(start)
    while (end.hasRemaining) channel.write(end)
  }
}
