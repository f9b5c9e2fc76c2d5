package org.apache.spark.sql.statestore.table

import org.apache.spark.unsafe.Platform

/**
 * An append-only log of records in byte array pages, addressed by offsets that only grow.
 *
 * Guarantees: the bytes of a record never move or change their meaning while anybody holds the
 * page that they are in. Appending never touches earlier bytes; truncating replaces the last page
 * by a copy, so rows and scans taken before keep reading what they saw. The log does no locking:
 * one thread writes at a time, and a scan may run on any thread that took its `LogView` after the
 * last write.
 */
private[statestore] final class Log {
  import Log._

  private var pages = new Array[Array[Byte]](4)
  private var used = new Array[Int](4)
  private var end = FirstOffset
  private var held = 0L

  /** Where the next record would go at the earliest: every record so far lies below. */
  def tail: Long = end

  /** Bytes of all pages. */
  def heldBytes: Long = held

  def page(offset: Long): Array[Byte] = pages((offset >>> PageBits).toInt)

  def view: LogView = new LogView(pages, used, end)

  /** Makes room for a record and returns its offset; the caller writes its fields. */
  def append(bytes: Int): Long = {
    val inPage = (end & PageMask).toInt
    val index = (end >>> PageBits).toInt
    // A page filled to its last byte leaves `end` at the start of the next one.
    if (inPage != 0 && index < pages.length && pages(index) != null &&
      inPage.toLong + bytes <= PageBytes && used(index) == inPage) {
      if (inPage + bytes > pages(index).length) grow(index, inPage + bytes)
      used(index) = inPage + bytes
      val offset = end
      end += bytes
      offset
    } else {
      startPage(bytes)
    }
  }

  /** Drops every record at or after `mark`, which was a tail of this log. */
  def truncate(mark: Long): Unit = {
    if (mark > end || mark < FirstOffset) {
      throw new IllegalArgumentException(s"cannot truncate a log of $end bytes to $mark")
    }
    if (mark < end) {
      val last = (mark >>> PageBits).toInt
      val inPage = (mark & PageMask).toInt
      // Fresh arrays: a scan that holds the old ones still sees the old pages.
      val keptPages = new Array[Array[Byte]](pages.length)
      val keptUsed = new Array[Int](used.length)
      System.arraycopy(pages, 0, keptPages, 0, last)
      System.arraycopy(used, 0, keptUsed, 0, last)
      val first = if (last == 0) FirstOffset.toInt else 0
      if (inPage > first && pages(last) != null) {
        keptPages(last) = pages(last).clone()
        keptUsed(last) = inPage
      }
      pages = keptPages
      used = keptUsed
      end = mark
      held = 0L
      var i = 0
      while (i < pages.length) {
        if (pages(i) != null) held += pages(i).length
        i += 1
      }
    }
  }

  private def startPage(bytes: Int): Long = {
    val index = ((end + PageMask) >>> PageBits).toInt
    val first = end == FirstOffset
    val at = if (first) 0 else index
    val inPage = if (first) FirstOffset.toInt else 0
    // A record larger than a page takes a page of its own and the page numbers that it spans.
    val span = ((inPage.toLong + bytes + PageMask) >>> PageBits).toInt
    if (at + span > MaxPages) {
      throw new IllegalStateException(
        s"one state table is limited to ${MaxPages.toLong << PageBits >> 30} GiB of records")
    }
    if (at + span > pages.length) {
      val length = math.max(pages.length * 2, at + span)
      pages = java.util.Arrays.copyOf(pages, length)
      used = java.util.Arrays.copyOf(used, length)
    }
    val wanted = inPage + bytes
    val size =
      if (wanted > PageBytes) wanted
      else if (at == 0) firstPageBytes(wanted)
      else PageBytes
    pages(at) = new Array[Byte](size)
    used(at) = wanted
    held += size
    val offset = (at.toLong << PageBits) + inPage
    end = offset + bytes
    offset
  }

  // Only the first page grows: a store of few rows must not cost a whole page.
  private def grow(index: Int, wanted: Int): Unit = {
    val size = firstPageBytes(wanted)
    held += size - pages(index).length
    pages(index) = java.util.Arrays.copyOf(pages(index), size)
  }

  private def firstPageBytes(wanted: Int): Int = {
    var size = FirstPageBytes
    while (size < wanted) size <<= 1
    math.min(size, PageBytes)
  }
}

private[statestore] object Log {
  final val PageBits = 18

  /** 256 KiB: below half of G1's smallest region, so pages are never humongous objects. */
  final val PageBytes = 1 << PageBits
  final val PageMask = PageBytes - 1L
  final val FirstPageBytes = 4096

  /** Offset 0 means "no record". */
  final val FirstOffset = 8L

  /** Offsets are kept as 36 bits of eight-byte units in the index. */
  final val MaxPages: Int = 1 << (36 + 3 - PageBits)

  def address(offset: Long): Long = Platform.BYTE_ARRAY_OFFSET + inPage(offset)

  // Offsets within an oversized page may pass PageMask only inside one record, never at its start.
  def inPage(offset: Long): Long = offset & PageMask
}

/** The pages of a log as they were at one moment, up to `end`. */
private[statestore] final class LogView(
    val pages: Array[Array[Byte]],
    val used: Array[Int],
    val end: Long)

/**
 * Walks the records of a log in append order, from `start` (a record or a former tail) to the end
 * of the view. After `advance()` returned true, `page` and `position` point at a record.
 */
private[statestore] final class LogScan(view: LogView, header: Int, start: Long = Log.FirstOffset) {
  private val lastPage = ((view.end - 1) >>> Log.PageBits).toInt
  private var index = (start >>> Log.PageBits).toInt
  private var next = (start & Log.PageMask).toInt
  private var limit = limitOf(index)

  var page: Array[Byte] = _
  var position: Long = 0L
  var offset: Long = 0L

  def advance(): Boolean = {
    while (next >= limit && index < lastPage) {
      index += 1
      next = 0
      limit = limitOf(index)
    }
    if (next >= limit || index > lastPage) {
      false
    } else {
      page = view.pages(index)
      position = Platform.BYTE_ARRAY_OFFSET + next.toLong
      offset = (index.toLong << Log.PageBits) + next
      next += Record.align(header + keyLength + valueLength)
      true
    }
  }

  def deadAt: Long = Platform.getLong(page, position + Record.DeadAt)
  def prev: Long = Platform.getLong(page, position + Record.Prev)
  def hash: Int = Platform.getInt(page, position + Record.Hash)
  def keyLength: Int = Platform.getInt(page, position + Record.KeyLength)
  def valueLength: Int = Platform.getInt(page, position + Record.ValueLength)
  def kind: Int = Platform.getInt(page, position + Record.Kind)
  def keyAddress: Long = position + header
  def valueAddress: Long = position + header + keyLength

  /** Alive at the end of the view, whatever was appended since. */
  def isAlive: Boolean = {
    val dead = deadAt
    dead == Record.None || dead >= view.end
  }

  // The last page may have been appended to since the view was taken.
  private def limitOf(i: Int): Int =
    if (i > lastPage || i >= view.pages.length || view.pages(i) == null) {
      0
    } else {
      math.min(view.used(i).toLong, view.end - (i.toLong << Log.PageBits)).toInt
    }
}
