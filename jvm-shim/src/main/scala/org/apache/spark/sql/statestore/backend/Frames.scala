package org.apache.spark.sql.statestore.backend

/**
 * Kinds and limits of the frames between the shim and the backend; docs/format.md describes the wire
 * format. A header has 20 bytes, little endian: kind, an unused byte, index of the column family,
 * magic, length of the payload and its CRC-32.
 */
private[statestore] object Frames {
  /** Version of frames, requests and answers; both sides must have the same one. */
  final val ProtocolVersion = 2

  final val HeaderBytes = 20
  final val Magic = 0x31545353

  /** A UTF-8 JSON object: a request or its answer. */
  final val Control: Byte = 1

  /** A state handle: one Arrow record batch message. */
  final val Handle: Byte = 2

  /** Changes of one column family: one Arrow record batch message, as it is stored. */
  final val Data: Byte = 3

  /** Nothing more follows in this message. */
  final val End: Byte = 4

  /** A UTF-8 JSON object that describes a failure; ends the message. */
  final val Error: Byte = 5

  /** A whole metadata object of a store whose checkpoints are on the driver. */
  final val Object: Byte = 6

  /** End of a stream of changes; the next one follows. */
  final val Stream: Byte = 7

  final val MaxControlBytes: Long = 16L << 20
  final val MaxHandleBytes: Long = 256L << 20
  final val MaxDataBytes: Long = Int.MaxValue.toLong
  final val MaxObjectBytes: Long = Int.MaxValue.toLong - 64
}
