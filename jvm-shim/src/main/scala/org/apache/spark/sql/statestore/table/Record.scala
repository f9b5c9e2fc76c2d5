package org.apache.spark.sql.statestore.table

/**
 * Layout of a log record: the positions of its fields, in bytes from its start. In memory only; the
 * stored format is in docs/format.md.
 *
 * {{{
 *   0 dead   : Long   low 36 bits: the record that superseded this one, 0 while nothing did;
 *                     high 28 bits: length of the value
 *   8 link   : Long   low 36 bits: the record that this one supersedes or follows, 0 when there is none;
 *                     then 26 bits: length of the key; high 2 bits: Row, Tombstone, Group or Append
 *  16 next   : Long   prefix tables only: the next member of the prefix group
 *  24 before : Long   prefix tables only: the previous member of the prefix group
 *  .. head   : Long   tables with several values per key only: the key's first value; of a first value 0 if it was
 *                     put, and its own offset if it was merged
 *  .. more   : Long   likewise: the key's next value, 0 when there is none
 *     key bytes, value bytes
 * }}}
 *
 * In the first two words records are named by their offset divided by eight, and lengths are in words:
 * records start at multiples of eight bytes, and rows are whole words. Everything but the low bits of
 * `dead`, `next`, `before` and `more` is written once. The low bits of `dead` are not written in a page that was
 * moved to a file, see `Log.mark`.
 */
private[statestore] object Record {
  final val Dead = 0
  final val Link = 8
  final val Next = 16
  final val Before = 24

  final val PlainHeader = 16
  final val RingBytes = 16
  final val ListBytes = 16

  /** A key and its value, the first one if it has several. */
  final val Row = 0

  /** A key that was removed; it has no value. */
  final val Tombstone = 1

  /** The head of a prefix group: its key is the prefix, it belongs to no change. */
  final val Group = 2

  /** A key and a further value of it. */
  final val Append = 3

  /** No record: offsets of records start at 8. */
  final val None = 0L

  /** Offsets are kept in so many bits, in units of eight bytes. */
  final val OffsetBits = 36
  final val OffsetMask: Long = (1L << OffsetBits) - 1

  /** The longest key, in bytes. What a value may have at most is bound by the record's size. */
  final val LongestKey: Int = ((1 << 26) - 1) * 8

  private final val KeyMask = (1 << 26) - 1
  private final val KindShift = 62

  def deadWord(dead: Long, valueLength: Int): Long = dead >>> 3 | (valueLength >>> 3).toLong << OffsetBits

  def linkWord(prev: Long, keyLength: Int, kind: Int): Long =
    prev >>> 3 | (keyLength >>> 3).toLong << OffsetBits | kind.toLong << KindShift

  /** The offset that one of the first two words names. */
  def offsetIn(word: Long): Long = (word & OffsetMask) << 3

  def valueLength(deadWord: Long): Int = (deadWord >>> OffsetBits).toInt << 3

  def keyLength(linkWord: Long): Int = ((linkWord >>> OffsetBits).toInt & KeyMask) << 3

  def kind(linkWord: Long): Int = (linkWord >>> KindShift).toInt
}
