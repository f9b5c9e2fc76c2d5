package org.apache.spark.sql.statestore.provider

/**
 * Decision when a full snapshot is taken, as pure functions of a version's chain.
 *
 * Guarantees: a chain never has more than `HardLimit` times the snapshot interval streams, so a load
 * reads a bounded number of streams whatever maintenance does; and a commit writes a full snapshot only if
 * that costs no more than its changes, if Spark requests one, or at that bound.
 */
private[statestore] object SnapshotPolicy {
  /** Intervals after which a background snapshot is due without a maintenance tick. */
  final val EagerLimit = 4

  /** Intervals after which a commit writes the snapshot itself. */
  final val HardLimit = 8

  /** State up to this many bytes is rewritten rather than extending a chain beyond the interval. */
  final val SmallState: Long = 64L << 10

  /**
   * Whether a commit writes everything rather than its changes.
   *
   * @param chainLength   streams in the parent's chain
   * @param stateBytes    bytes of all live rows
   * @param changedBytes  bytes of the changes
   * @param background    whether snapshots are uploaded in the background
   */
  def fullOnCommit(
      chainLength: Int, interval: Int, stateBytes: Long, changedBytes: Long,
      forced: Boolean, background: Boolean): Boolean =
    forced || chainLength == 0 || stateBytes <= changedBytes ||
      chainLength > interval && (!background || stateBytes <= SmallState) ||
      chainLength >= HardLimit * interval

  /** True if a snapshot is written in the background, to become the base of a later commit. */
  def dueInBackground(
      chainLength: Int, interval: Int, stateBytes: Long, baseBytes: Long, deltaBytes: Long,
      tick: Boolean): Boolean =
    chainLength > interval && stateBytes > SmallState &&
      (tick || deltaBytes > baseBytes || chainLength >= EagerLimit * interval)
}
