package org.apache.spark.sql.statestore.io

/**
 * The frames that travel between the shim and the backend; docs/format.md describes the wire.
 * A header is 16 bytes, little endian: kind, flags, state index, magic, payload length. With the
 * flag `Sealed` the CRC-32 of the payload follows it.
 */
private[statestore] object Frames {
  /** Changes whenever frames, requests or answers change. */
  final val ProtocolVersion = 6

  final val HeaderBytes = 16
  final val Magic = 0x31545353

  /** A UTF-8 JSON object: what is asked, or what is answered. */
  final val Control: Byte = 1

  /** A state handle: one Arrow record batch message. */
  final val Handle: Byte = 2

  /** Changes of one named state: one Arrow record batch message. */
  final val Data: Byte = 3

  /** Nothing more follows in this message. */
  final val End: Byte = 4

  /** A UTF-8 JSON object that says what went wrong; ends the message. */
  final val Error: Byte = 5

  /** A whole metadata object, of a store whose metadata is in no file. */
  final val Object: Byte = 6

  /** A stream of changes ends; what follows is of another. */
  final val Stream: Byte = 7

  /** Flag of changes that are as storage will hold them. */
  final val Sealed: Byte = 1

  final val MaxControlBytes: Long = 16L << 20
  final val MaxHandleBytes: Long = 256L << 20
  final val MaxDataBytes: Long = Int.MaxValue.toLong
  final val MaxObjectBytes: Long = Int.MaxValue.toLong - 64
}
