package org.apache.spark.sql.statestore

import org.apache.spark.sql.statestore.provider.SnapshotPolicy

/** Access to the plan of snapshots and runs, for tests in Python. Sizes are text with commas. */
object SnapshotPolicyTrial {
  def isBaseDue(baseBytes: Long, freshBytes: Long, onTop: String, interval: Int): Boolean =
    SnapshotPolicy.isBaseDue(baseBytes, freshBytes, sizes(onTop), interval)

  def runFrom(onTop: String, from: Int, interval: Int, tick: Boolean): Int =
    SnapshotPolicy.runFrom(sizes(onTop), from, interval, tick)

  /**
   * Adds deltas one by one to a base that is never due, and merges them as planned. Returns the number of streams and
   * of bytes on top of the base, and the bytes that were written, after each delta.
   */
  def history(deltas: String, interval: Int, tick: Boolean): Array[String] = {
    var onTop = Array.empty[Long]
    var written = 0L
    sizes(deltas).map { delta =>
      onTop :+= delta
      written += delta
      val first = SnapshotPolicy.runFrom(onTop, 0, interval, tick)
      if (first >= 0) {
        val run = onTop.drop(first).sum
        onTop = onTop.take(first) :+ run
        written += run
      }
      s"${onTop.length},${onTop.sum},$written"
    }
  }

  private def sizes(text: String): Array[Long] = text.split(',').filter(_.nonEmpty).map(_.toLong)
}
