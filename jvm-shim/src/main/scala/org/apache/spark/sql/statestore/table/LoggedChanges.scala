package org.apache.spark.sql.statestore.table

import org.apache.spark.unsafe.Platform

/**
 * A copy of the changes that a table logged after an offset, in their order.
 *
 * Guarantees: `applyTo` makes them again, so that a table that was rolled back to the offset has the rows, and the
 * order of values of a key, that it had before.
 */
private[statestore] final class LoggedChanges private (bytes: Array[Byte]) {
  import LoggedChanges._

  /** Makes the changes again in the table, which has been rolled back to their start. */
  def applyTo(table: StateTable): Unit = {
    var at = Platform.BYTE_ARRAY_OFFSET.toLong
    val end = at + bytes.length
    while (at < end) {
      val keyLength = Platform.getInt(bytes, at + KeyLength)
      val valueLength = Platform.getInt(bytes, at + ValueLength)
      val key = at + Header
      Platform.getInt(bytes, at) match {
        case Put => table.put(bytes, key, keyLength, bytes, key + keyLength, valueLength)
        case Merge => table.merge(bytes, key, keyLength, bytes, key + keyLength, valueLength)
        case Remove => table.remove(bytes, key, keyLength)
      }
      at = key + keyLength + valueLength
    }
  }
}

private[statestore] object LoggedChanges {
  private final val Put = 0
  private final val Merge = 1
  private final val Remove = 2

  // Of a change: its kind, the lengths of key and value, and their bytes.
  private final val KeyLength = 4
  private final val ValueLength = 8
  private final val Header = 16

  /** Copies the changes from an offset to the end of a view, whose records have fewer than 2 GiB. */
  def of(table: StateTable, since: Long, view: LogView): LoggedChanges = {
    var size = 0
    foreach(table.scan(view, since))(scan => size = Math.addExact(size, Header + scan.keyLength + scan.valueLength))
    val bytes = new Array[Byte](size)
    var at = Platform.BYTE_ARRAY_OFFSET.toLong
    foreach(table.scan(view, since)) { scan =>
      val kind = if (scan.kind == Record.Tombstone) Remove else if (scan.isMerge) Merge else Put
      Platform.putInt(bytes, at, kind)
      Platform.putInt(bytes, at + KeyLength, scan.keyLength)
      Platform.putInt(bytes, at + ValueLength, scan.valueLength)
      val length = scan.keyLength + scan.valueLength
      Platform.copyMemory(scan.page, scan.keyAddress, bytes, at + Header, length.toLong)
      at += Header + length
    }
    new LoggedChanges(bytes)
  }

  private def foreach(scan: LogScan)(body: LogScan => Unit): Unit =
    while (scan.advance()) if (scan.kind != Record.Group) body(scan)
}
