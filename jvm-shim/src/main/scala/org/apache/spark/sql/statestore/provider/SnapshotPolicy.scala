package org.apache.spark.sql.statestore.provider

/**
 * Decision when a full snapshot is taken, as pure functions of a version's chain.
 *
 * Guarantees: a chain never has more than `HardLimit` times the snapshot interval streams, so a load
 * reads a bounded number of streams whatever maintenance does; and a commit writes a full snapshot only if
 * that costs no more than its changes, if the state is small, if Spark requests one, or at that bound.
 */
private[statestore] object SnapshotPolicy {
  /** Intervals after which a background snapshot is due without a maintenance tick. */
  final val EagerLimit = 4

  /** Intervals after which a commit writes the snapshot itself. */
  final val HardLimit = 8

  /** State up to this many bytes is rewritten rather than extending a chain beyond the interval. */
  final val SmallState: Long = 64L << 10

  private final val MediumState: Long = 256L << 10
  private final val MediumStateRemote: Long = 1L << 20

  /**
   * Whether a commit writes everything rather than its changes.
   *
   * @param chainLength   streams in the parent's chain
   * @param stateBytes    bytes of all live rows
   * @param changedBytes  bytes of the changes
   * @param due           whether a snapshot is due, see `isDue`
   * @param background    whether snapshots are uploaded in the background
   * @param isRemote      whether storage is other than local files
   */
  def fullOnCommit(
      chainLength: Int, interval: Int, stateBytes: Long, changedBytes: Long,
      forced: Boolean, due: Boolean, background: Boolean, isRemote: Boolean): Boolean =
    forced || chainLength == 0 || stateBytes <= changedBytes ||
      chainLength > interval && (!background || stateBytes <= SmallState) ||
      due && !inBackground(stateBytes, isRemote) ||
      chainLength >= HardLimit * interval

  /**
   * True if a snapshot that is due is written in the background, to become the base of a later commit. A smaller one
   * is in the commit's own object: on remote storage that saves two requests, one of them within a commit.
   */
  def inBackground(stateBytes: Long, isRemote: Boolean): Boolean =
    stateBytes > (if (isRemote) MediumStateRemote else MediumState)

  /**
   * True if a snapshot is due.
   *
   * @param tick  whether Spark's maintenance calls
   */
  def isDue(chainLength: Int, interval: Int, baseBytes: Long, deltaBytes: Long, tick: Boolean): Boolean =
    chainLength > interval && (tick || deltaBytes > baseBytes || chainLength >= EagerLimit * interval)
}
