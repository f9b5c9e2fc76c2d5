package org.apache.spark.sql.statestore

/**
 * When a full snapshot is taken: pure decisions over a version's chain.
 *
 * Guarantees: a chain never grows past `HardLimit` times the snapshot interval, so a load reads a
 * bounded number of streams whatever maintenance does; and a batch pays for a full snapshot only
 * where that costs no more than its own changes, where Spark asks for one, or at that bound.
 */
private[statestore] object SnapshotPolicy {
  /** A background snapshot is due without a maintenance tick at so many intervals. */
  final val EagerLimit = 4

  /** A commit takes the snapshot itself at so many intervals. */
  final val HardLimit = 8

  /** State of at most so many bytes is written again sooner than a stream is added to its chain. */
  final val SmallState: Long = 64L << 10

  /**
   * Whether a commit writes everything rather than its changes.
   *
   * @param chainLength   streams in the parent's chain
   * @param stateBytes    bytes of all live rows
   * @param changedBytes  bytes of the changes
   * @param background    whether the storage takes snapshots in the background
   */
  def fullOnCommit(
      chainLength: Int, interval: Int, stateBytes: Long, changedBytes: Long,
      forced: Boolean, background: Boolean): Boolean =
    forced || chainLength == 0 || stateBytes <= changedBytes ||
      chainLength > interval && (!background || stateBytes <= SmallState) ||
      chainLength >= HardLimit * interval

  /** Whether a snapshot is written in the background, to become the base of a later commit. */
  def dueInBackground(
      chainLength: Int, interval: Int, stateBytes: Long, baseBytes: Long, deltaBytes: Long,
      tick: Boolean): Boolean =
    chainLength > interval && stateBytes > SmallState &&
      (tick || deltaBytes > baseBytes || chainLength >= EagerLimit * interval)
}
