package org.apache.spark.sql.statestore.table

import org.apache.spark.unsafe.Platform

/**
 * Finds the newest record of a key: a directory of segments by the high bits of the key's hash, and
 * in each segment open addressing with linear probing over longs, each holding 28 bits of the hash
 * and the record's offset in eight-byte units.
 *
 * Guarantees: no entry is ever lost by growth or removal, which need the entries alone and never
 * the records; a lookup reads a record only when 28 bits of hash agree. Growing moves the entries
 * of one segment at a time, at most 64 KiB of them, so no insertion waits for all others to move.
 * It holds what the segments lie in.
 *
 * A place is a segment and a slot in it. It is good until the next insertion or removal.
 */
private[statestore] final class HashIndex(records: Records) {
  import HashIndex._

  // For each value of the high bits of a hash: the segment's object, the address of its first slot
  // in there, and what else is known of it. A segment that was split less often stands there several times.
  private var bases = new Array[AnyRef](1)
  private var addresses = new Array[Long](1)
  private var segments = new Array[Segment](1)
  private var shift = TagBits
  // The slots of a segment less one; only a single one has less than the most.
  private var mask = SmallestCapacity - 1
  private var count = 0L
  private var made = 1

  private val memory = records.log.memory

  enter(newSegment(SmallestCapacity, 0), 0)

  def size: Long = count

  def memoryBytes: Long = 8L * made * (mask + 1L) + bases.length * 16L

  /** The place of the key's entry; the complement of a free place for it when it has none. */
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

  /** The newest record of a key, `Record.None` when it has none. */
  def lookup(hash: Int, keyBase: Object, keyOffset: Long, keyLength: Int): Long = {
    val place = find(hash, keyBase, keyOffset, keyLength)
    if (place < 0) Record.None else offsetAt(place)
  }

  def offsetAt(place: Int): Long = Record.offsetIn(entryAt(place))

  def replaceAt(place: Int, offset: Long): Unit =
    setEntry(place, entryAt(place) & ~Record.OffsetMask | offset >>> 3)

  /**
   * Makes sure of room for one more entry, whose free place `find` gave; returns a free place for it. What
   * may fail for want of memory fails here, and changes nothing.
   */
  def roomAt(place: Int, hash: Int): Int = if (isFull(segments(place >>> SegmentBits))) room(hash) else place

  /** The same for an entry of which only the hash is known. */
  def room(hash: Int): Int = {
    val tag = tagOf(hash)
    while (isFull(segments(tag >>> shift)) && grow(tag >>> shift)) {}
    val segment = segments(tag >>> shift)
    (tag >>> shift) << SegmentBits | freeSlot(segment, tag)
  }

  /** Adds an entry for a key that has none, where `room` or `roomAt` said. */
  def insertAt(place: Int, hash: Int, offset: Long): Unit = {
    setEntry(place, entryOf(hash, offset))
    segments(place >>> SegmentBits).count += 1
    count += 1
  }

  /** Adds an entry for a key that has none. */
  def insert(hash: Int, offset: Long): Unit = insertAt(room(hash), hash, offset)

  /** Adds an entry as `entryOf` makes it; false if there is one for the same key. */
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

  /** What lies where the key's entry would lie at best: asking for it brings it into the processor's cache. */
  def peek(hash: Int): Long = {
    val tag = tagOf(hash)
    read(bases(tag >>> shift), addresses(tag >>> shift), tag & mask)
  }

  /** As `peek`; gives the offset of a record that may well be the key's, else `Record.None`. */
  def guess(hash: Int): Long = {
    val entry = peek(hash)
    if ((entry >>> Record.OffsetBits).toInt == tagOf(hash)) Record.offsetIn(entry) else Record.None
  }

  /** Points the entry of one record at another record of the same key. */
  def replace(hash: Int, from: Long, to: Long): Unit = replaceAt(placeOf(hash, from), to)

  /** Removes the entry of a record, closing the gap in its run of probes. */
  def remove(hash: Int, offset: Long): Unit = {
    val place = placeOf(hash, offset)
    val segment = place >>> SegmentBits
    val base = bases(segment)
    val address = addresses(segment)
    var gap = place & SegmentMask
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

  /** Makes room for so many keys at once, so that filling an empty index does not grow it step by step. */
  def reserve(keys: Long): Unit = if (count == 0L) {
    while (mask < SegmentMask && keys * LoadDenominator > (mask + 1L) * LoadNumerator) widen()
    var depth = 0
    while (depth < MostSplits && keys * LoadDenominator > (SegmentSlots.toLong << depth) * LoadNumerator) depth += 1
    if (depth > 0) {
      val reserved = Array.fill(1 << depth)(newSegment(SegmentSlots, depth))
      memory.free(segments(0).base, 8 * SegmentSlots)
      shift = TagBits - depth
      made = reserved.length
      segments = reserved
      bases = new Array[AnyRef](made)
      addresses = new Array[Long](made)
      reserved.indices.foreach(i => enter(reserved(i), i))
    }
  }

  // Makes room in a segment; false if that cannot be, but there is room left.
  private def grow(segment: Int): Boolean =
    if (mask < SegmentMask) {
      widen()
      true
    } else if (segments(segment).depth < MostSplits) {
      split(segment)
      true
    } else if (segments(segment).count < SegmentSlots - SpareSlots) {
      false
    } else {
      throw new IllegalStateException(
        s"one state table is limited to about ${(SegmentSlots.toLong << MostSplits) * LoadNumerator / LoadDenominator} " +
          "keys, use more shuffle partitions for this query")
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
    made += 1
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
    val block = if (slots < SegmentSlots) memory.allocateInHeap(8 * slots) else memory.allocate(8 * slots)
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

  private def placeOf(hash: Int, offset: Long): Int = {
    val wanted = entryOf(hash, offset)
    val segment = tagOf(hash) >>> shift
    var slot = tagOf(hash) & mask
    var entry = read(bases(segment), addresses(segment), slot)
    while (entry != wanted) {
      if (entry == Empty) {
        throw new IllegalStateException(s"the index has no entry for the record at $offset")
      }
      slot = (slot + 1) & mask
      entry = read(bases(segment), addresses(segment), slot)
    }
    segment << SegmentBits | slot
  }

  private def entryAt(place: Int): Long =
    read(bases(place >>> SegmentBits), addresses(place >>> SegmentBits), place & SegmentMask)

  private def setEntry(place: Int, entry: Long): Unit =
    write(bases(place >>> SegmentBits), addresses(place >>> SegmentBits), place & SegmentMask, entry)
}

private[statestore] object HashIndex {
  private final val TagBits = 28
  private final val Empty = 0L
  private final val SmallestCapacity = 16

  // 64 KiB, far below what G1 takes for humongous.
  private final val SegmentBits = 13
  private final val SegmentSlots = 1 << SegmentBits
  private final val SegmentMask = SegmentSlots - 1

  // The high bits of a tag tell the segment, the low ones the slot; no bit does both.
  private final val MostSplits = TagBits - SegmentBits

  // Grows when more than 0.6 of the slots are taken: who looks for what is not there ends at a free one.
  private final val LoadNumerator = 3
  private final val LoadDenominator = 5

  // Free slots that a segment which cannot be split keeps, since probing ends at one.
  private final val SpareSlots = 256

  /** The entries whose hashes share their `depth` highest bits. */
  private final class Segment(val base: AnyRef, val address: Long, var depth: Int) {
    var count = 0
  }

  private def tagOf(hash: Int): Int = hash >>> 4

  /** What the index has of a key: bits of its hash, and where its record is. */
  private[table] def entryOf(hash: Int, offset: Long): Long = tagOf(hash).toLong << Record.OffsetBits | offset >>> 3

  private def read(base: AnyRef, address: Long, slot: Int): Long = Platform.getLong(base, address + (slot.toLong << 3))

  private def write(base: AnyRef, address: Long, slot: Int, entry: Long): Unit =
    Platform.putLong(base, address + (slot.toLong << 3), entry)
}
