package org.apache.spark.sql.statestore.table

import org.apache.spark.unsafe.Platform

/**
 * An append-only log of records in pages, addressed by offsets that only grow.
 *
 * Guarantees: the bytes of a record never move or change their meaning while anybody holds the
 * page that they are in. Appending never touches earlier bytes; truncating replaces the last page
 * by a copy or ends it, so rows and scans taken before keep reading what they saw. The log does no locking:
 * one thread writes at a time, and a scan may run on any thread that took its `LogView` after the
 * last write.
 *
 * @param memory  what the pages lie in
 */
private[statestore] final class Log(private[table] val memory: TableMemory) {
  import Log._

  // Of each page: the object that it lies in if it is in the heap, the address of its first byte, 0 if there
  // is no page, its size, and how far its records reach, which is known once records go elsewhere.
  private var pages = new Array[AnyRef](4)
  private var addresses = new Array[Long](4)
  private var sizes = new Array[Int](4)
  private var used = new Array[Int](4)

  // The page that was started last, -1 if there is none, and the offset that is its end.
  private var last = -1
  private var limit = FirstOffset
  private var end = FirstOffset
  private var held = 0L

  /** Where the next record would go at the earliest: every record so far lies below. */
  def tail: Long = end

  /** Bytes of all pages. */
  def heldBytes: Long = held

  /** The object that a record lies in, null if it is not in the heap. */
  def page(offset: Long): AnyRef = pages((offset >>> PageBits).toInt)

  /** Where a record lies, in its page's object if there is one. */
  def address(offset: Long): Long = addresses((offset >>> PageBits).toInt) + (offset & PageMask)

  def view: LogView = new LogView(memory, pages, addresses, used, last, end)

  /** Makes room for a record and returns its offset; the caller writes its fields. */
  def append(bytes: Int): Long = {
    val offset = end
    if (offset + bytes <= limit) {
      end = offset + bytes
      offset
    } else {
      appendElsewhere(bytes)
    }
  }

  /** Drops every record at or after `mark`, which was a tail of this log. */
  def truncate(mark: Long): Unit = {
    if (mark > end || mark < FirstOffset) {
      throw new IllegalArgumentException(s"cannot truncate a log of $end bytes to $mark")
    }
    if (mark < end) {
      var kept = if (mark == FirstOffset) -1 else ((mark - 1) >>> PageBits).toInt
      while (kept >= 0 && addresses(kept) == 0L) kept -= 1
      // In a file the rest of the page stays unused: going back must not fail because a disk is full.
      val reopens = kept >= 0 && pages(kept) != null && mark < startOf(kept) + PageBytes
      val reopened = if (reopens) copyInHeap(kept, sizes(kept)) else null
      (kept + 1 to last).foreach(drop)
      // Fresh arrays: a scan that holds the old ones still sees the old pages.
      val oldPages = pages
      val oldAddresses = addresses
      val oldSizes = sizes
      val oldUsed = used
      pages = new Array[AnyRef](oldPages.length)
      addresses = new Array[Long](oldPages.length)
      sizes = new Array[Int](oldPages.length)
      used = new Array[Int](oldPages.length)
      System.arraycopy(oldPages, 0, pages, 0, kept + 1)
      System.arraycopy(oldAddresses, 0, addresses, 0, kept + 1)
      System.arraycopy(oldSizes, 0, sizes, 0, kept + 1)
      System.arraycopy(oldUsed, 0, used, 0, kept + 1)
      last = kept
      end = mark
      limit = mark
      if (reopens) {
        drop(kept)
        enter(kept, reopened, sizes(kept))
      }
    }
  }

  private def copyInHeap(page: Int, size: Int): Block = {
    val copy = memory.allocateInHeap(size)
    Platform.copyMemory(
      pages(page), addresses(page), copy.base, copy.address, math.min(size, sizes(page)).toLong)
    copy
  }

  private def enter(page: Int, block: Block, size: Int): Unit = {
    pages(page) = block.base
    addresses(page) = block.address
    sizes(page) = size
    held += size
    limit = startOf(page) + size
  }

  private def drop(page: Int): Unit = if (addresses(page) != 0L) {
    memory.free(pages(page), sizes(page))
    held -= sizes(page)
  }

  private def appendElsewhere(bytes: Int): Long = {
    // Only the first page grows: a store of few rows must not cost a whole page.
    if (last == 0 && end + bytes <= PageBytes && limit < PageBytes) grow((end + bytes).toInt)
    else startPage(bytes)
    val offset = end
    end += bytes
    offset
  }

  private def grow(wanted: Int): Unit = {
    val size = firstPageBytes(wanted)
    val grown = copyInHeap(0, size)
    drop(0)
    enter(0, grown, size)
  }

  private def startPage(bytes: Int): Unit = {
    val at = if (last < 0) 0 else ((end + PageMask) >>> PageBits).toInt
    val inPage = if (last < 0) FirstOffset else 0L
    val wanted = inPage + bytes
    // A record larger than a page takes a page of its own and the page numbers that it spans.
    val span = ((wanted + PageMask) >>> PageBits).toInt
    if (at + span > MaxPages) {
      throw new IllegalStateException(
        s"one state table is limited to ${MaxPages.toLong << PageBits >> 30} GiB of records")
    }
    if (at + span > pages.length) {
      val length = math.max(pages.length * 2, at + span)
      pages = java.util.Arrays.copyOf(pages, length)
      addresses = java.util.Arrays.copyOf(addresses, length)
      sizes = java.util.Arrays.copyOf(sizes, length)
      used = java.util.Arrays.copyOf(used, length)
    }
    val size =
      if (wanted > PageBytes) wanted.toInt
      else if (at == 0) firstPageBytes(wanted.toInt)
      else PageBytes
    val block = if (size < PageBytes) memory.allocateInHeap(size) else memory.allocate(size)
    if (last >= 0) used(last) = (end - startOf(last)).toInt
    enter(at, block, size)
    last = at
    end = startOf(at) + inPage
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

  final val MaxPages: Int = 1 << (Record.OffsetBits + 3 - PageBits)

  def startOf(page: Int): Long = page.toLong << PageBits
}

/**
 * The pages of a log as they were at one moment, up to `end`.
 *
 * @param memory  what the pages lie in, which stays while somebody has the view
 * @param last  the page that ends there
 */
private[statestore] final class LogView private[table] (
    private[table] val memory: TableMemory, pages: Array[AnyRef], addresses: Array[Long], used: Array[Int], val last: Int, val end: Long) {

  def page(offset: Long): AnyRef = pages((offset >>> Log.PageBits).toInt)

  def address(offset: Long): Long = addresses((offset >>> Log.PageBits).toInt) + (offset & Log.PageMask)

  /** The offset at which the records of a page end, its start if there is no such page. */
  def endOf(page: Int): Long =
    if (page == last) end
    else if (page > last || addresses(page) == 0L) Log.startOf(page)
    else Log.startOf(page) + used(page)
}

/**
 * Walks the records of a log in append order, from `start` (a record or a former tail) to the end
 * of the view. After `advance()` returned true, it stands on a record.
 */
private[statestore] final class LogScan(view: LogView, header: Int, start: Long = Log.FirstOffset) {
  private var index = (start >>> Log.PageBits).toInt
  private var next = start
  private var limit = view.endOf(index)
  // From an offset in this page to its address.
  private var toAddress = 0L
  private var dead = 0L
  private var link = 0L

  var page: AnyRef = _
  var position: Long = 0L
  var offset: Long = 0L

  enter()

  def advance(): Boolean = {
    while (next >= limit && index < view.last) {
      index += 1
      next = Log.startOf(index)
      limit = view.endOf(index)
      enter()
    }
    if (next >= limit) {
      false
    } else {
      offset = next
      position = next + toAddress
      dead = Platform.getLong(page, position + Record.Dead)
      link = Platform.getLong(page, position + Record.Link)
      next += header + keyLength + valueLength
      true
    }
  }

  def deadAt: Long = Record.offsetIn(dead)
  def prev: Long = Record.offsetIn(link)
  def keyLength: Int = Record.keyLength(link)
  def valueLength: Int = Record.valueLength(dead)
  def kind: Int = Record.kind(link)
  def keyAddress: Long = position + header
  def valueAddress: Long = position + header + keyLength
  def hash: Int = StateTable.hashOf(page, keyAddress, keyLength)

  /** Alive at the end of the view, whatever was appended since. */
  def isAlive: Boolean = {
    val by = deadAt
    by == Record.None || by >= view.end
  }

  private def enter(): Unit = if (next < limit) {
    page = view.page(next)
    toAddress = view.address(next) - next
  }
}
