package org.apache.spark.sql.statestore.table

import java.io.IOException
import java.lang.invoke.VarHandle
import java.lang.ref.WeakReference

import org.apache.spark.unsafe.Platform

/**
 * An append-only log of records in pages, addressed by offsets that only grow. When the heap is full, full pages
 * are copied to files, the oldest first, to make room for index segments and for marks: a superseded record of
 * a page in a file is marked in an array in the heap, since the kernel writes changed pages of files back and the
 * next write to each is then a page fault.
 *
 * Guarantees: the bytes of a record never change their meaning while its page is reachable. Appending never
 * touches earlier bytes; truncating replaces the last page by a copy or ends it, and moving a page leaves the
 * former one to the views that have it, so rows and scans taken before keep reading what they saw. Marks that
 * such a view lacks are of records that were superseded behind its end. The log does no locking: one
 * thread writes at a time, and a scan may run on any thread that took its `LogView` after the last write.
 *
 * @param memory    allocates the pages
 * @param smallest  size of the smallest record, in bytes
 */
private[statestore] final class Log(private[table] val memory: TableMemory, smallest: Int) {
  import Log._

  // Of each page: its array if it is in the heap, the address of its first byte (0 if there is no page), its
  // size, and the end of its records, set once the next page is started.
  private var pages = new Array[AnyRef](4)
  private var addresses = new Array[Long](4)
  private var sizes = new Array[Int](4)
  private var used = new Array[Int](4)

  // Of each page in a file: the marks of its records as in their first word, by position in the page divided by
  // the size of the smallest record; null if there is none.
  private var marks = new Array[Array[Int]](4)

  // The arrays of pages and addresses, and former ones as long as a view has them: it must not keep a moved page in the heap.
  private var inViews = List(new ViewedPages(pages, addresses))

  // No page before this one is in the heap.
  private var firstInHeap = 0

  // The last page, -1 if there is none, and the offset of its end.
  private var last = -1
  private var limit = FirstOffset
  private var end = FirstOffset
  private var totalBytes = 0L

  /** Offset after the last record. */
  def tail: Long = end

  /** Bytes of all pages and marks. */
  def heldBytes: Long = totalBytes

  /** Returns the array of a record's page, null if it is in a file. */
  def page(offset: Long): AnyRef = pages((offset >>> PageBits).toInt)

  /** Returns the address of a record, relative to its page, see `LogView.address`. */
  def address(page: AnyRef, offset: Long): Long = addressIn(page, addresses, offset)

  def view: LogView = new LogView(memory, smallest, pages, addresses, used, marks, last, end)

  /** True if no page from an offset on is in a file. */
  def isInHeap(from: Long): Boolean =
    ((from >>> PageBits).toInt to last).forall(page => pages(page) != null || addresses(page) == 0L)

  /**
   * Marks a record of a page in a file as superseded by another one; `Record.None` undoes it. False if the record's
   * first word must be written: it has the mark, or the heap has no room for marks.
   */
  def mark(offset: Long, by: Long): Boolean = {
    val page = (offset >>> PageBits).toInt
    if (by == Record.None) {
      if (marks(page) != null) marks(page)(slotOf(offset, smallest)) = 0
      Record.offsetIn(Platform.getLong(null, address(null, offset) + Record.Dead)) == Record.None
    } else {
      val fits = by <= LargestMark && (marks(page) != null || startMarks(page))
      if (fits) marks(page)(slotOf(offset, smallest)) = (by >>> 3).toInt
      fits
    }
  }

  /** Allocates an index segment in the heap, from which pages are moved if it is full; else in a file. */
  def allocateSegment(bytes: Int): Block =
    if (makeRoom(bytes)) memory.allocateInHeap(bytes) else memory.allocateInFile(bytes)

  /** Makes room in the heap for index segments or marks; false if it cannot be. */
  def makeRoom(bytes: Int): Boolean = {
    while (!memory.hasRoom(bytes) && tryToMovePages()) {}
    memory.hasRoom(bytes) || memory.mayExceedLimit(bytes)
  }

  /** Allocates a record and returns its offset; the caller writes its fields. */
  def append(bytes: Int): Long = {
    val offset = end
    if (offset + bytes <= limit) {
      end = offset + bytes
      offset
    } else {
      appendElsewhere(bytes)
    }
  }

  /** Makes an empty log one of these pages, which ends at `tail`; the next record starts a page. */
  def restore(stored: Array[LogPage], tail: Long): Unit = {
    val count = stored.last.number + math.max(1, ((stored.last.size + PageMask) >>> PageBits).toInt)
    replaceArrays(math.max(pages.length, count), 0)
    stored.foreach { page =>
      enter(page.number, page.block, page.size)
      used(page.number) = page.used
    }
    last = stored.last.number
    end = tail
    limit = tail
  }

  /** Returns the pages, for a copy. */
  def describe(): Array[LogPage] = (0 to last).iterator.filter(addresses(_) != 0L).map { page =>
    new LogPage(page, new Block(pages(page), addresses(page)), sizes(page), if (page == last) (end - startOf(page)).toInt else used(page))
  }.toArray

  /** Drops every record at or after `to`, which was a tail of this log. */
  def truncate(to: Long): Unit = {
    if (to > end || to < FirstOffset) {
      throw new IllegalArgumentException(s"cannot truncate a log of $end bytes to $to")
    }
    if (to < end) {
      var newLast = if (to == FirstOffset) -1 else ((to - 1) >>> PageBits).toInt
      while (newLast >= 0 && addresses(newLast) == 0L) newLast -= 1
      // The rest of a page in a file stays unused: a rollback must not fail because a disk is full.
      val reopens = newLast >= 0 && pages(newLast) != null && to < startOf(newLast) + PageBytes
      val reopened = if (reopens) copyPage(newLast, sizes(newLast)) else null
      (newLast + 1 to last).foreach(drop)
      // New arrays: views keep the old ones with the old pages.
      replaceArrays(pages.length, newLast + 1)
      firstInHeap = math.min(firstInHeap, newLast + 1)
      last = newLast
      end = to
      limit = to
      if (reopens) {
        drop(newLast)
        enter(newLast, reopened, sizes(newLast))
      }
    }
  }

  private def copyPage(page: Int, size: Int): Block = {
    val copy = memory.allocatePageInHeap(size)
    Platform.copyMemory(
      pages(page), addresses(page), copy.base, copy.address, math.min(size, sizes(page)).toLong)
    copy
  }

  private def enter(page: Int, block: Block, size: Int): Unit = {
    // Threads with an earlier view read these arrays: they must not see a page before the bytes that were copied to it.
    VarHandle.releaseFence()
    pages(page) = block.base
    addresses(page) = block.address
    sizes(page) = size
    totalBytes += size
    limit = startOf(page) + size
  }

  private def drop(page: Int): Unit = if (addresses(page) != 0L) {
    memory.freePage(pages(page), sizes(page))
    totalBytes -= sizes(page)
    if (marks(page) != null) {
      memory.free(marks(page), 4 * marks(page).length)
      totalBytes -= 4 * marks(page).length
    }
  }

  private def startMarks(page: Int): Boolean = {
    val slots = if (sizes(page) > PageBytes) 1 else slotOf(PageMask, smallest) + 1
    val fits = makeRoom(4 * slots)
    if (fits) {
      marks(page) = new Array[Int](slots)
      memory.take(4 * slots)
      totalBytes += 4 * slots
    }
    fits
  }

  // An update that needs no file must not fail because a disk is full.
  private def tryToMovePages(): Boolean = try movePages() catch {
    case _: IOException => false
  }

  /**
   * Moves the oldest full pages in the heap to a file, many at a time; false if there is none. Readers may go on.
   *
   * @throws IOException  if the disk has no space
   */
  def movePages(): Boolean = {
    val moving = new java.util.ArrayList[Integer]
    var bytes = 0L
    var page = firstInHeap
    while (page < last && (bytes == 0L || bytes + sizes(page) <= MovedBytes)) {
      if (pages(page) != null) {
        moving.add(page)
        bytes += sizes(page)
      }
      page += 1
    }
    if (!moving.isEmpty) {
      val moved = moving.toArray(Array.empty[Integer])
      val arrays = moved.map(pages(_))
      val moveTo = memory.moveToFiles(arrays.map(_.asInstanceOf[Array[Byte]]))
      inViews = inViews.filter(_.replace(moved, arrays, moveTo))
    }
    firstInHeap = page
    !moving.isEmpty
  }

  private def appendElsewhere(bytes: Int): Long = {
    // Only the first page grows: a store of few rows must not take a whole page.
    if (last == 0 && end + bytes <= PageBytes && limit < PageBytes && pages(0) != null) grow((end + bytes).toInt)
    else startPage(bytes)
    val offset = end
    end += bytes
    offset
  }

  private def grow(bytes: Int): Unit = {
    val size = firstPageBytes(bytes)
    val grown = copyPage(0, size)
    drop(0)
    enter(0, grown, size)
  }

  private def startPage(bytes: Int): Unit = {
    val at = if (last < 0) 0 else ((end + PageMask) >>> PageBits).toInt
    val inPage = if (last < 0) FirstOffset else 0L
    val endInPage = inPage + bytes
    // A record larger than a page gets a page of its own, which occupies several page numbers.
    val span = ((endInPage + PageMask) >>> PageBits).toInt
    if (at + span > MaxPages) {
      throw new IllegalStateException(
        s"one state table is limited to ${MaxPages.toLong << PageBits >> 30} GiB of records")
    }
    if (at + span > pages.length) {
      replaceArrays(math.max(pages.length * 2, at + span), pages.length)
    }
    val size =
      if (endInPage > PageBytes) endInPage.toInt
      else if (at == 0) firstPageBytes(endInPage.toInt)
      else PageBytes
    if (memory.isOverLimit) tryToMovePages()
    val block = if (size < PageBytes) memory.allocatePageInHeap(size) else memory.allocatePage(size)
    if (last >= 0) used(last) = (end - startOf(last)).toInt
    enter(at, block, size)
    last = at
    end = startOf(at) + inPage
  }

  // Replaces the arrays by ones of a length, with so many pages of theirs; changes nothing if memory runs out.
  private def replaceArrays(length: Int, pageCount: Int): Unit = {
    val newPages = new Array[AnyRef](length)
    val newAddresses = new Array[Long](length)
    val newSizes = new Array[Int](length)
    val newUsed = new Array[Int](length)
    val newMarks = new Array[Array[Int]](length)
    val viewed = new ViewedPages(newPages, newAddresses) :: inViews.filter(_.isUsed)
    System.arraycopy(pages, 0, newPages, 0, pageCount)
    System.arraycopy(addresses, 0, newAddresses, 0, pageCount)
    System.arraycopy(sizes, 0, newSizes, 0, pageCount)
    System.arraycopy(used, 0, newUsed, 0, pageCount)
    System.arraycopy(marks, 0, newMarks, 0, pageCount)
    pages = newPages
    addresses = newAddresses
    sizes = newSizes
    used = newUsed
    marks = newMarks
    inViews = viewed
  }

  private def firstPageBytes(bytes: Int): Int = {
    var size = FirstPageBytes
    while (size < bytes) size <<= 1
    math.min(size, PageBytes)
  }
}

private[statestore] object Log {
  final val PageBits = 18

  /** 256 KiB: below half of G1's smallest region, so that pages are never humongous objects. */
  final val PageBytes = 1 << PageBits
  final val PageMask = PageBytes - 1L
  final val FirstPageBytes = 4096

  /** Offset 0 means "no record". */
  final val FirstOffset = 8L

  final val MaxPages: Int = 1 << (Record.OffsetBits + 3 - PageBits)

  // Pages are moved to a file so many bytes at a time, or one that is larger.
  private final val MovedBytes = 16L << 20

  // Marks have 32 bits, in units of eight bytes.
  private final val LargestMark = 0xffffffffL << 3

  private[table] def addressIn(page: AnyRef, addresses: Array[Long], offset: Long): Long =
    if (page != null) {
      Platform.BYTE_ARRAY_OFFSET + (offset & PageMask)
    } else {
      VarHandle.acquireFence()
      addresses((offset >>> PageBits).toInt) + (offset & PageMask)
    }

  def startOf(page: Int): Long = page.toLong << PageBits

  /** The pages of a log and of its views, which share them: weak references, as views may outlive or leave them. */
  private final class ViewedPages(ofPages: Array[AnyRef], ofAddresses: Array[Long]) {
    private val pages = new WeakReference(ofPages)
    private val addresses = new WeakReference(ofAddresses)

    /** True if a log or view has them. */
    def isUsed: Boolean = pages.get != null

    /** Replaces pages in the heap by those at addresses in a file; false if no log or view has them. */
    def replace(moved: Array[Integer], from: Array[AnyRef], to: Array[Long]): Boolean = {
      val inPages = pages.get
      val inAddresses = addresses.get
      val isUsed = inPages != null && inAddresses != null
      if (isUsed) {
        moved.indices.foreach { i =>
          val page = moved(i)
          if (page < inPages.length && (inPages(page) eq from(i))) {
            inAddresses(page) = to(i)
            // A reader that finds no array then finds this address, see `LogView.address`.
            VarHandle.releaseFence()
            inPages(page) = null
          }
        }
      }
      isUsed
    }
  }

  /** Returns the position of a record's mark among those of its page. */
  private[table] def slotOf(offset: Long, smallest: Int): Int = (offset & PageMask).toInt / smallest

  /** Returns the offset that a mark names, that of the record's first word if it has none. */
  private[table] def markedBy(mark: Int, dead: Long): Long =
    if (mark != 0) (mark & 0xffffffffL) << 3 else Record.offsetIn(dead)
}

/**
 * Immutable view of the pages of a log up to `end`.
 *
 * @param memory    memory of the pages, which stays valid while the view is reachable
 * @param smallest  size of the smallest record
 * @param last      the last page
 */
private[statestore] final class LogView private[table] (
    private[table] val memory: TableMemory,
    private[table] val smallest: Int,
    pages: Array[AnyRef],
    addresses: Array[Long],
    used: Array[Int],
    marks: Array[Array[Int]],
    val last: Int,
    val end: Long) {

  def page(offset: Long): AnyRef = pages((offset >>> Log.PageBits).toInt)

  /**
   * Returns the address of a record, relative to its page, which `page` has returned before: another thread may move it to a
   * file meanwhile.
   */
  def address(page: AnyRef, offset: Long): Long = Log.addressIn(page, addresses, offset)

  /** Returns the marks of a page, null if they are all in its records. */
  private[table] def marksOf(page: Int): Array[Int] = marks(page)

  /** Returns the offset of the record that superseded another one, `Record.None` if none did. */
  private[table] def deadAt(offset: Long): Long = {
    val ofPage = marks((offset >>> Log.PageBits).toInt)
    val mark = if (ofPage == null) 0 else ofPage(Log.slotOf(offset, smallest))
    val base = page(offset)
    Log.markedBy(mark, Platform.getLong(base, address(base, offset) + Record.Dead))
  }

  /** Returns the end of the records of a page, its start if there is no such page. */
  def endOf(page: Int): Long =
    if (page == last) end
    else if (page > last || addresses(page) == 0L) Log.startOf(page)
    else Log.startOf(page) + used(page)
}

/**
 * Cursor over the records of a view in append order, from `start` (a record or a former tail) on. After
 * `advance()` returned true, its fields are those of a record.
 *
 * @param head  position of the offset of a key's first value, `NoLists` if a key has one value only
 */
private[statestore] final class LogScan(
    view: LogView, header: Int, head: Int = LogScan.NoLists, start: Long = Log.FirstOffset) {
  private var index = (start >>> Log.PageBits).toInt
  private var next = start
  private var limit = view.endOf(index)
  // From an offset in this page to its address.
  private var toAddress = 0L
  private var marks: Array[Int] = _
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

  def deadAt: Long =
    if (marks == null) Record.offsetIn(dead) else Log.markedBy(marks(Log.slotOf(offset, view.smallest)), dead)

  def prev: Long = Record.offsetIn(link)
  def keyLength: Int = Record.keyLength(link)
  def valueLength: Int = Record.valueLength(dead)
  def kind: Int = Record.kind(link)
  def keyAddress: Long = position + header
  def valueAddress: Long = position + header + keyLength

  /** True if the record is alive at the end of the view, whatever was appended since. */
  def isAlive: Boolean = {
    val by = deadAt
    by == Record.None || by >= view.end
  }

  /** True if the record's key had a row when the log ended at `tail`. Reads only what is never rewritten. */
  def existedAt(tail: Long): Boolean = {
    var old = prev
    while (old >= tail) old = Record.offsetIn(linkOf(old))
    old != Record.None && Record.kind(linkOf(old)) != Record.Tombstone
  }

  private def linkOf(record: Long): Long = {
    val base = view.page(record)
    Platform.getLong(base, view.address(base, record) + Record.Link)
  }

  /** True if the record appends a value to those of its key, be it the first one. */
  def isMerge: Boolean = kind == Record.Append || kind == Record.Row && isMerged(page, position, offset)

  /** True if the first value of a new list supersedes the record, and that list is the key's at the end of the view. */
  def precedesMerge: Boolean = {
    val by = deadAt
    head != LogScan.NoLists && by != Record.None && by < view.end && isAliveAndMerged(by)
  }

  private def isAliveAndMerged(offset: Long): Boolean = {
    val by = view.deadAt(offset)
    val page = view.page(offset)
    val position = view.address(page, offset)
    (by == Record.None || by >= view.end) &&
      Record.kind(Platform.getLong(page, position + Record.Link)) == Record.Row && isMerged(page, position, offset)
  }

  private def isMerged(page: AnyRef, position: Long, offset: Long): Boolean =
    head != LogScan.NoLists && Platform.getLong(page, position + head) == offset

  private def enter(): Unit = if (next < limit) {
    page = view.page(next)
    toAddress = view.address(page, next) - next
    marks = view.marksOf(index)
  }
}

private[statestore] object LogScan {
  /** Position of `head` in a log of a table whose keys have one value each. */
  final val NoLists = -1
}
