package org.apache.spark.sql.statestore.provider

/**
 * Decision when a full snapshot or a run is written, as pure functions of the sizes of a version's streams. The
 * chain of a version is a base, which is a full snapshot, and runs and deltas on top of it; a run has the net
 * changes of several deltas.
 *
 * Guarantees, for states above `SmallState` while uploads keep up with the batches:
 *  - a load reads at most `MostOnTop` more than a fresh snapshot, and one delta;
 *  - streams on top of the base are twice the interval and a number that grows with the logarithm of their bytes at most;
 *  - every changed byte is written once in a delta, once in the runs of each level, and 1 / `MostOnTop` times in bases;
 *  - a commit writes a full snapshot only if that costs no more than its changes, if the state is small, if Spark
 *    requests one, or if the chain has `HardLimit` intervals, whatever maintenance does.
 */
private[statestore] object SnapshotPolicy {
  /** Bytes that a load reads beyond those of a fresh snapshot, as a fraction of these. */
  final val MostOnTop = 0.25

  /** Number of runs of one size that are merged into one. */
  final val FanOut = 8

  /** Intervals after which the base is written again because streams cannot be merged. */
  final val EagerLimit = 4

  /** Intervals after which a commit writes the snapshot itself. */
  final val HardLimit = 8

  // A short interval limits the deltas on top of the runs, not the runs.
  private final val LeastInterval = 10

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
   * @param due           whether a snapshot is due, see `isBaseDue`
   * @param background    whether snapshots are uploaded in the background
   * @param isRemote      whether storage is other than local files
   */
  def fullOnCommit(
      chainLength: Int, interval: Int, stateBytes: Long, changedBytes: Long,
      forced: Boolean, due: Boolean, background: Boolean, isRemote: Boolean): Boolean =
    forced || chainLength == 0 || stateBytes <= changedBytes ||
      chainLength > interval && (!background || stateBytes <= SmallState) ||
      due && !inBackground(stateBytes, isRemote) ||
      chainLength >= HardLimit * math.max(interval, if (background) LeastInterval else interval)

  /**
   * True if a snapshot that is due is written in the background, to become the base of a later commit. A smaller one
   * is in the commit's own object: on remote storage that saves two requests, one of them within a commit.
   */
  def inBackground(stateBytes: Long, isRemote: Boolean): Boolean =
    stateBytes > (if (isRemote) MediumStateRemote else MediumState)

  /**
   * True if a snapshot is due of a state that is too small for runs.
   *
   * @param tick  whether Spark's maintenance calls
   */
  def isSmallBaseDue(chainLength: Int, interval: Int, baseBytes: Long, onTop: Long, tick: Boolean): Boolean =
    chainLength > interval && (tick || onTop > baseBytes || chainLength >= EagerLimit * interval)

  /**
   * True if the base is to be written again.
   *
   * @param baseBytes   bytes of the base, as stored
   * @param freshBytes  estimate of those that a snapshot of the present state would have
   * @param onTop       bytes of the runs and deltas on top of the base, oldest first
   */
  def isBaseDue(baseBytes: Long, freshBytes: Long, onTop: Array[Long], interval: Int): Boolean = {
    val bytes = onTop.sum
    // The upload takes at least until the next commit, which adds a delta.
    val soon = bytes + onTop.lastOption.getOrElse(0L)
    val isLarge = baseBytes + soon > (1 + MostOnTop) * freshBytes || bytes > baseBytes
    isLarge && (bytes > SmallState || onTop.length > interval) ||
      onTop.length >= EagerLimit * math.max(interval, LeastInterval)
  }

  /**
   * Returns the position of the oldest stream on top of the base that a run is to merge, with all newer ones; -1 if
   * none is due.
   *
   * @param onTop  as in `isBaseDue`
   * @param from   the oldest stream whose changes are known in memory
   * @param tick   whether Spark's maintenance calls; otherwise twice as many streams are waited for
   */
  def runFrom(onTop: Array[Long], from: Int, interval: Int, tick: Boolean): Int = {
    val least = if (tick) interval else 2 * interval
    // Merged with so many times its bytes, so that a byte is merged once for each level. Deltas of one size make a run
    // when they are more than the interval.
    val times = math.min(FanOut - 1, interval)
    var found = -1
    var newer = 0L
    var at = onTop.length - 1
    while (at >= from) {
      if (onTop.length - at > least && onTop(at) * times <= newer) found = at
      newer += onTop(at)
      at -= 1
    }
    found
  }
}
