package org.apache.spark.sql.statestore.table

/**
 * Where the fields of a log record lie, in bytes from the record's start. This layout lives in
 * memory only; what is stored is described in docs/format.md.
 *
 * {{{
 *   0 deadAt : Long   offset of the record that superseded this one, 0 while nothing did
 *   8 prev   : Long   offset of the record that this one supersedes or follows, 0 when there is none
 *  16 hash   : Int    hash of the key bytes
 *  20 keyLen : Int    bytes of the key
 *  24 valLen : Int    bytes of the value
 *  28 kind   : Int    Row, Tombstone, Group or Append
 *  32 next   : Long   prefix tables only: the next member of the prefix group
 *  40 before : Long   prefix tables only: the previous member of the prefix group
 *  .. head   : Long   tables with several values per key only: the key's first value
 *  .. more   : Long   likewise: the key's next value, 0 when there is none
 *     key bytes, value bytes
 * }}}
 *
 * Everything but `deadAt`, `next`, `before` and `more` is written once. Records start at multiples
 * of eight bytes, since UnsafeRow reads words.
 */
private[statestore] object Record {
  final val DeadAt = 0
  final val Prev = 8
  final val Hash = 16
  final val KeyLength = 20
  final val ValueLength = 24
  final val Kind = 28
  final val Next = 32
  final val Before = 40

  final val PlainHeader = 32
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

  def align(bytes: Int): Int = (bytes + 7) & ~7
}
