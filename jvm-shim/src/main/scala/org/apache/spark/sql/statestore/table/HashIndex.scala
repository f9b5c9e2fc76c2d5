package org.apache.spark.sql.statestore.table

import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.array.ByteArrayMethods

/**
 * Finds the newest record of a key: open addressing with linear probing over longs, each holding
 * 28 bits of the key's hash and the record's offset in eight-byte units.
 *
 * Guarantees: no entry is ever lost by growth or removal, which need the entries alone and never
 * the records; a lookup reads a record only when 28 bits of hash agree. The table is kept in
 * chunks of 64 KiB, so that growing it asks for no huge array.
 */
private[statestore] final class HashIndex(log: Log, header: Int) {
  import HashIndex._

  private var chunks = Array(new Array[Long](SmallestCapacity))
  private var mask = SmallestCapacity - 1
  private var count = 0

  def size: Int = count

  def memoryBytes: Long = 8L * (mask.toLong + 1)

  /** The slot of the key's record, -1 when the key has none. */
  def find(hash: Int, keyBase: Object, keyOffset: Long, keyLength: Int): Int = {
    val tag = tagOf(hash)
    var slot = tag & mask
    var entry = entryAt(slot)
    while (entry != Empty) {
      if ((entry >>> OffsetBits).toInt == tag) {
        val offset = offsetOf(entry)
        val page = log.page(offset)
        val record = Log.address(offset)
        if (Platform.getInt(page, record + Record.KeyLength) == keyLength &&
          ByteArrayMethods.arrayEquals(page, record + header, keyBase, keyOffset, keyLength.toLong)) {
          return slot
        }
      }
      slot = (slot + 1) & mask
      entry = entryAt(slot)
    }
    -1
  }

  def offsetAt(slot: Int): Long = offsetOf(entryAt(slot))

  def replaceAt(slot: Int, offset: Long): Unit =
    setEntry(slot, entryAt(slot) & ~OffsetMask | offset >>> 3)

  /** Adds an entry for a key that has none. */
  def insert(hash: Int, offset: Long): Unit = {
    if ((count + 1L) * LoadDenominator > (mask + 1L) * LoadNumerator) reserve(count * 2)
    place(tagOf(hash).toLong << OffsetBits | offset >>> 3)
    count += 1
  }

  /** Points the entry of one record at another record of the same key. */
  def replace(hash: Int, from: Long, to: Long): Unit = replaceAt(slotOf(hash, from), to)

  /** Removes the entry of a record, closing the gap in its run of probes. */
  def remove(hash: Int, offset: Long): Unit = {
    var gap = slotOf(hash, offset)
    var slot = (gap + 1) & mask
    var entry = entryAt(slot)
    while (entry != Empty) {
      val home = (entry >>> OffsetBits).toInt & mask
      // The entry may move back only if its home is not after the gap.
      if (((slot - home) & mask) >= ((slot - gap) & mask)) {
        setEntry(gap, entry)
        gap = slot
      }
      slot = (slot + 1) & mask
      entry = entryAt(slot)
    }
    setEntry(gap, Empty)
    count -= 1
  }

  /** Makes room for so many keys at once, so that filling the table does not grow it step by step. */
  def reserve(keys: Int): Unit = {
    val needed = keys.toLong * LoadDenominator / LoadNumerator + 1
    var capacity = mask + 1L
    while (capacity < needed) capacity <<= 1
    if (capacity > MaxCapacity) {
      throw new IllegalStateException(
        s"one state table is limited to ${MaxCapacity * LoadNumerator / LoadDenominator} keys, " +
          "use more shuffle partitions for this query")
    }
    if (capacity > mask + 1L) rehash(capacity.toInt)
  }

  private def rehash(capacity: Int): Unit = {
    val old = chunks
    chunks =
      if (capacity <= ChunkSize) Array(new Array[Long](capacity))
      else Array.fill(capacity >>> ChunkBits)(new Array[Long](ChunkSize))
    mask = capacity - 1
    var i = 0
    while (i < old.length) {
      val chunk = old(i)
      var j = 0
      while (j < chunk.length) {
        if (chunk(j) != Empty) place(chunk(j))
        j += 1
      }
      i += 1
    }
  }

  private def place(entry: Long): Unit = {
    var slot = (entry >>> OffsetBits).toInt & mask
    while (entryAt(slot) != Empty) slot = (slot + 1) & mask
    setEntry(slot, entry)
  }

  private def slotOf(hash: Int, offset: Long): Int = {
    val wanted = tagOf(hash).toLong << OffsetBits | offset >>> 3
    var slot = tagOf(hash) & mask
    var entry = entryAt(slot)
    while (entry != wanted) {
      if (entry == Empty) {
        throw new IllegalStateException(s"the index has no entry for the record at $offset")
      }
      slot = (slot + 1) & mask
      entry = entryAt(slot)
    }
    slot
  }

  private def entryAt(slot: Int): Long = chunks(slot >>> ChunkBits)(slot & ChunkMask)

  private def setEntry(slot: Int, entry: Long): Unit =
    chunks(slot >>> ChunkBits)(slot & ChunkMask) = entry

  private def offsetOf(entry: Long): Long = (entry & OffsetMask) << 3
}

private[statestore] object HashIndex {
  private final val OffsetBits = 36
  private final val OffsetMask = (1L << OffsetBits) - 1
  private final val Empty = 0L
  private final val ChunkBits = 13
  private final val ChunkSize = 1 << ChunkBits
  private final val ChunkMask = ChunkSize - 1
  private final val SmallestCapacity = 16

  // Slots come from the 28 tag bits, so more slots than tags would cluster.
  private final val MaxCapacity = 1L << 28

  // Grows when more than 0.7 of the slots are taken.
  private final val LoadNumerator = 7L
  private final val LoadDenominator = 10L

  private def tagOf(hash: Int): Int = hash >>> 4
}
