package org.apache.spark.sql.statestore.table

import org.apache.spark.unsafe.Platform

/**
 * Extendible hash index from a key to its newest record: a directory of segments by the high bits of the
 * key's hash; each segment is an open-addressing table with linear probing, whose entries are longs of 28
 * bits of the hash and the record's offset in eight-byte units.
 *
 * Guarantees: growth and removal keep every entry, and read the entries only, never the records; a lookup
 * reads a record only if 28 bits of hash agree. Growth moves the entries of one segment, at most 64 KiB,
 * so no insertion waits for a rehash of all others. It keeps the memory of its segments reachable.
 *
 * A position is a segment and a slot in it, valid until the next insertion or removal.
 */
private[statestore] final class HashIndex(records: Records) {
  import HashIndex._

  // The directory, by the high bits of a hash: the segment's array, the address of its first slot, and its
  // description. A segment of smaller depth has several entries.
  private var bases = new Array[AnyRef](1)
  private var addresses = new Array[Long](1)
  private var segments = new Array[Segment](1)
  private var shift = TagBits
  // The number of slots of a segment minus 1; only the first segment is smaller than the maximum.
  private var mask = SmallestCapacity - 1
  private var count = 0L
  private var segmentCount = 1
  private var inFiles = 0

  private val memory = records.log.memory

  enter(newSegment(SmallestCapacity, 0), 0)

  def size: Long = count

  def memoryBytes: Long = 8L * segmentCount * (mask + 1L) + bases.length * 16L

  /** Returns the position of the key's entry, or the complement of a free position for it. */
  def find(hash: Int, keyBase: Object, keyOffset: Long, keyLength: Int): Int = {
    val tag = tagOf(hash)
    val segment = tag >>> shift
    val base = bases(segment)
    val address = addresses(segment)
    var slot = tag & mask
    var entry = read(base, address, slot)
    while (entry != Empty) {
      if ((entry >>> Record.OffsetBits).toInt == tag &&
        records.hasKey(Record.offsetIn(entry), keyBase, keyOffset, keyLength)) {
        return segment << SegmentBits | slot
      }
      slot = (slot + 1) & mask
      entry = read(base, address, slot)
    }
    ~(segment << SegmentBits | slot)
  }

  /** Returns the newest record of a key, `Record.None` if it has none. */
  def lookup(hash: Int, keyBase: Object, keyOffset: Long, keyLength: Int): Long = {
    val position = find(hash, keyBase, keyOffset, keyLength)
    if (position < 0) Record.None else offsetAt(position)
  }

  def offsetAt(position: Int): Long = Record.offsetIn(entryAt(position))

  def replaceAt(position: Int, offset: Long): Unit =
    setEntry(position, entryAt(position) & ~Record.OffsetMask | offset >>> 3)

  /**
   * Reserves room for one more entry, whose free position `find` returned; returns a free position for it. An
   * allocation that fails changes nothing.
   */
  def roomAt(position: Int, hash: Int): Int = if (isFull(segments(position >>> SegmentBits))) room(hash) else position

  /** The same by the hash alone. */
  def room(hash: Int): Int = {
    val tag = tagOf(hash)
    while (isFull(segments(tag >>> shift)) && grow(tag >>> shift)) {}
    val segment = segments(tag >>> shift)
    (tag >>> shift) << SegmentBits | freeSlot(segment, tag)
  }

  /** Adds an entry for a key that has none, at a position of `room` or `roomAt`. */
  def insertAt(position: Int, hash: Int, offset: Long): Unit = {
    setEntry(position, entryOf(hash, offset))
    segments(position >>> SegmentBits).count += 1
    count += 1
  }

  /** Adds an entry for a key that has none. */
  def insert(hash: Int, offset: Long): Unit = insertAt(room(hash), hash, offset)

  /** Adds an entry of `entryOf`; false if the key has one. */
  def insertNew(entry: Long): Boolean = {
    val tag = (entry >>> Record.OffsetBits).toInt
    while ((segments(tag >>> shift).count + 1) * LoadDenominator > (mask + 1) * LoadNumerator && grow(tag >>> shift)) {}
    val base = bases(tag >>> shift)
    val address = addresses(tag >>> shift)
    var slot = tag & mask
    var present = read(base, address, slot)
    while (present != Empty) {
      if (((present ^ entry) >>> Record.OffsetBits) == 0L &&
        records.haveSameKey(Record.offsetIn(present), Record.offsetIn(entry))) {
        return false
      }
      slot = (slot + 1) & mask
      present = read(base, address, slot)
    }
    write(base, address, slot, entry)
    segments(tag >>> shift).count += 1
    count += 1
    true
  }

  /** Reads the first probed slot of a key, which loads it into the processor's cache. */
  def peek(hash: Int): Long = {
    val tag = tagOf(hash)
    read(bases(tag >>> shift), addresses(tag >>> shift), tag & mask)
  }

  /** The same; returns the offset of a record that is likely the key's, else `Record.None`. */
  def guess(hash: Int): Long = {
    val entry = peek(hash)
    if ((entry >>> Record.OffsetBits).toInt == tagOf(hash)) Record.offsetIn(entry) else Record.None
  }

  /** Points the entry of one record at another record of the same key. */
  def replace(hash: Int, from: Long, to: Long): Unit = replaceAt(positionOf(hash, from), to)

  /** Removes the entry of a record, closing the gap in its run of probes. */
  def remove(hash: Int, offset: Long): Unit = {
    val position = positionOf(hash, offset)
    val segment = position >>> SegmentBits
    val base = bases(segment)
    val address = addresses(segment)
    var gap = position & SegmentMask
    var slot = (gap + 1) & mask
    var entry = read(base, address, slot)
    while (entry != Empty) {
      val home = (entry >>> Record.OffsetBits).toInt & mask
      // The entry may move back only if its home is not after the gap.
      if (((slot - home) & mask) >= ((slot - gap) & mask)) {
        write(base, address, gap, entry)
        gap = slot
      }
      slot = (slot + 1) & mask
      entry = read(base, address, slot)
    }
    write(base, address, gap, Empty)
    segments(segment).count -= 1
    count -= 1
  }

  /** Returns the segments in the order of the directory, for a copy. */
  def describe(): Array[IndexSegment] = segments.distinct.map { segment =>
    new IndexSegment(new Block(segment.base, segment.address), 8 * (mask + 1), segment.depth, segment.count)
  }

  /** Makes an empty index one of these segments, which together have all entries. */
  def restore(stored: Array[IndexSegment]): Unit = {
    memory.free(segments(0).base, 8 * (mask + 1))
    val depth = stored.map(_.depth).max
    mask = stored(0).size / 8 - 1
    shift = TagBits - depth
    segmentCount = stored.length
    inFiles = stored.count(_.block.base == null)
    segments = new Array[Segment](1 << depth)
    bases = new Array[AnyRef](1 << depth)
    addresses = new Array[Long](1 << depth)
    var at = 0
    stored.foreach { description =>
      val segment = new Segment(description.block.base, description.block.address, description.depth)
      segment.count = description.count
      val width = 1 << depth - description.depth
      (at until at + width).foreach(enter(segment, _))
      at += width
    }
    count = stored.iterator.map(_.count.toLong).sum
  }

  /** Reserves room for so many keys in an empty index, which then does not grow step by step. */
  def reserve(keys: Long): Unit = if (count == 0L) {
    while (mask < SegmentMask && keys * LoadDenominator > (mask + 1L) * LoadNumerator) widen()
    var depth = 0
    while (depth < MostSplits && keys * LoadDenominator > (SegmentSlots.toLong << depth) * LoadNumerator) depth += 1
    if (depth > 0) {
      val reserved = Array.fill(1 << depth)(newSegment(SegmentSlots, depth))
      memory.free(segments(0).base, 8 * SegmentSlots)
      if (segments(0).base == null) inFiles -= 1
      shift = TagBits - depth
      segmentCount = reserved.length
      segments = reserved
      bases = new Array[AnyRef](segmentCount)
      addresses = new Array[Long](segmentCount)
      reserved.indices.foreach(i => enter(reserved(i), i))
    }
  }

  /** Moves segments from files into heap that has become free, some at a time. */
  def moveToHeap(): Unit = {
    var at = 0
    var moved = 0
    while (inFiles > 0 && moved < MostMoved && at < segments.length && records.log.makeRoom(8 * SegmentSlots)) {
      val old = segments(at)
      val width = segments.length >>> old.depth
      if (old.base == null) {
        val block = memory.allocateInHeap(8 * SegmentSlots)
        Platform.copyMemory(null, old.address, block.base, block.address, 8L * SegmentSlots)
        val segment = new Segment(block.base, block.address, old.depth)
        segment.count = old.count
        (at until at + width).foreach(enter(segment, _))
        inFiles -= 1
        moved += 1
      }
      at += width
    }
  }

  // Widens or splits a segment; false if neither is possible, but there is room left.
  private def grow(segment: Int): Boolean =
    if (mask < SegmentMask) {
      widen()
      true
    } else if (segments(segment).depth < MostSplits) {
      split(segment)
      true
    } else if (segments(segment).count < SegmentSlots - ReservedSlots) {
      false
    } else {
      throw new IllegalStateException(
        s"the index of a state table has no room for another key. It has $count keys, of about $MostKeys that it may have " +
          s"in all, and ${segments(segment).count} of them have hashes with the same highest bits. " +
          (if (count > MostKeys / 2) "Use more shuffle partitions for this query."
          else "The hashes of so few keys are not random: restart the executors with localRecovery=off, since each process has other hashes.") +
          " Nothing that was committed is lost.")
    }

  // Twice the slots for the only segment.
  private def widen(): Unit = {
    val old = segments(0)
    val slots = mask + 1
    val wide = newSegment(2 * slots, 0)
    mask = 2 * slots - 1
    enter(wide, 0)
    var i = 0
    while (i < slots) {
      val entry = read(old.base, old.address, i)
      if (entry != Empty) place(wide, entry)
      i += 1
    }
    memory.free(old.base, 8 * slots)
  }

  // Half of a segment's entries go to a new one.
  private def split(segment: Int): Unit = {
    val low = segments(segment)
    val high = newSegment(SegmentSlots, low.depth + 1)
    val entries = new Array[Long](SegmentSlots)
    if (TagBits - shift == low.depth) doubleDirectory()
    low.depth += 1
    val width = segments.length >>> low.depth
    var at = segments.indexWhere(_ eq low) + width
    val end = at + width
    while (at < end) {
      enter(high, at)
      at += 1
    }
    val bytes = 8L * SegmentSlots
    Platform.copyMemory(low.base, low.address, entries, Platform.LONG_ARRAY_OFFSET.toLong, bytes)
    Platform.setMemory(low.base, low.address, bytes, 0)
    low.count = 0
    var i = 0
    while (i < SegmentSlots) {
      val entry = entries(i)
      if (entry != Empty) {
        place(if ((entry >>> (Record.OffsetBits + TagBits - low.depth) & 1L) == 0L) low else high, entry)
      }
      i += 1
    }
    segmentCount += 1
  }

  private def doubleDirectory(): Unit = {
    val old = segments
    val wideBases = new Array[AnyRef](2 * old.length)
    val wideAddresses = new Array[Long](2 * old.length)
    segments = new Array[Segment](2 * old.length)
    bases = wideBases
    addresses = wideAddresses
    shift -= 1
    var i = 0
    while (i < segments.length) {
      enter(old(i / 2), i)
      i += 1
    }
  }

  private def newSegment(slots: Int, depth: Int): Segment = {
    val block = if (slots < SegmentSlots) memory.allocateInHeap(8 * slots) else records.log.allocateSegment(8 * slots)
    if (block.base == null) inFiles += 1
    new Segment(block.base, block.address, depth)
  }

  private def isFull(segment: Segment): Boolean =
    (segment.count + 1) * LoadDenominator > (mask + 1) * LoadNumerator

  private def enter(segment: Segment, at: Int): Unit = {
    segments(at) = segment
    bases(at) = segment.base
    addresses(at) = segment.address
  }

  private def place(segment: Segment, entry: Long): Unit = {
    write(segment.base, segment.address, freeSlot(segment, (entry >>> Record.OffsetBits).toInt), entry)
    segment.count += 1
  }

  private def freeSlot(segment: Segment, tag: Int): Int = {
    var slot = tag & mask
    while (read(segment.base, segment.address, slot) != Empty) slot = (slot + 1) & mask
    slot
  }

  private def positionOf(hash: Int, offset: Long): Int = {
    val entry = entryOf(hash, offset)
    val segment = tagOf(hash) >>> shift
    var slot = tagOf(hash) & mask
    var present = read(bases(segment), addresses(segment), slot)
    while (present != entry) {
      if (present == Empty) {
        throw new IllegalStateException(s"the index has no entry for the record at $offset")
      }
      slot = (slot + 1) & mask
      present = read(bases(segment), addresses(segment), slot)
    }
    segment << SegmentBits | slot
  }

  private def entryAt(position: Int): Long =
    read(bases(position >>> SegmentBits), addresses(position >>> SegmentBits), position & SegmentMask)

  private def setEntry(position: Int, entry: Long): Unit =
    write(bases(position >>> SegmentBits), addresses(position >>> SegmentBits), position & SegmentMask, entry)
}

private[statestore] object HashIndex {
  private final val TagBits = 28
  private final val Empty = 0L
  private final val SmallestCapacity = 16

  // 64 KiB, far below G1's humongous objects.
  private final val SegmentBits = 13
  private final val SegmentSlots = 1 << SegmentBits
  private final val SegmentMask = SegmentSlots - 1
  private[table] final val SegmentBytes = 8 * SegmentSlots

  // The high bits of a tag select the segment, the low ones the slot; no bit does both.
  private final val MostSplits = TagBits - SegmentBits

  // Maximum load factor of 0.6: an unsuccessful lookup ends at a free slot.
  private final val LoadNumerator = 3
  private final val LoadDenominator = 5

  private final val MostKeys = (SegmentSlots.toLong << MostSplits) * LoadNumerator / LoadDenominator

  // Segments that are moved to the heap at a time: 16 MiB.
  private final val MostMoved = 256

  // Free slots of a segment that cannot be split, since probing ends at one.
  private final val ReservedSlots = 256

  /** The entries whose hashes share their `depth` highest bits. */
  private final class Segment(val base: AnyRef, val address: Long, var depth: Int) {
    var count = 0
  }

  private def tagOf(hash: Int): Int = hash >>> 4

  /** Returns the entry of a key: bits of its hash, and the offset of its record. */
  private[table] def entryOf(hash: Int, offset: Long): Long = tagOf(hash).toLong << Record.OffsetBits | offset >>> 3

  private def read(base: AnyRef, address: Long, slot: Int): Long = Platform.getLong(base, address + (slot.toLong << 3))

  private def write(base: AnyRef, address: Long, slot: Int, entry: Long): Unit =
    Platform.putLong(base, address + (slot.toLong << 3), entry)
}
