package org.apache.spark.sql.statestore.driver

import scala.collection.mutable

/** A partition of state that moves to an executor. */
private[statestore] final case class PartitionMove(partition: Int, executor: String)

/**
 * Decides which partitions move, so that each executor has its share of them.
 *
 * Guarantees: after all moves no executor has more than one partition more than another. Nothing moves while each has its
 * share within `Tolerance`, or while one partition more or less is the only difference.
 */
private[statestore] object PartitionMoves {
  /** Part of its share by which an executor may differ. */
  final val Tolerance = 0.2

  /**
   * Returns the moves that are due, those of partitions whose executor is gone first.
   *
   * @param places     the executor of each partition, None where Spark knows none
   * @param executors  that may have state
   * @param elsewhere  partitions of other operators and queries on each of them: of equal ones, the one with fewest takes the next
   * @param isMovable  false for partitions that stay where they are, unless their executor is gone
   * @param most       most moves of partitions whose executor is not gone
   * @param salt       by which different operators choose different ones of equal executors
   */
  def due(
      places: IndexedSeq[Option[String]], executors: Seq[String], elsewhere: Map[String, Int], isMovable: Int => Boolean, most: Int,
      salt: Int): Seq[PartitionMove] = if (executors.isEmpty) Nil else {
    val present = executors.toSet
    val partitionsOf = mutable.Map.from(executors.map(_ -> mutable.ArrayBuffer.empty[Int]))
    places.indices.foreach(partition => places(partition).filter(present).foreach(partitionsOf(_) += partition))
    def least = executors.minBy(executor => (partitionsOf(executor).size, elsewhere.getOrElse(executor, 0), (executor, salt).hashCode))
    def fullest = executors.maxBy(executor => partitionsOf(executor).size)
    val moves = mutable.ArrayBuffer.empty[PartitionMove]
    def move(partition: Int): Unit = {
      val to = least
      partitionsOf(to) += partition
      moves += PartitionMove(partition, to)
    }
    places.indices.filter(places(_).exists(!present(_))).foreach(move)
    val gone = moves.size
    val share = places.count(_.isDefined).toDouble / executors.size
    if (executors.exists(executor => math.abs(partitionsOf(executor).size - share) > Tolerance * share)) {
      var from = fullest
      while (from != null && moves.size - gone < most && partitionsOf(from).size - partitionsOf(least).size > 1) {
        val partition = partitionsOf(from).lastIndexWhere(isMovable)
        if (partition < 0) {
          from = null
        } else {
          move(partitionsOf(from).remove(partition))
          from = fullest
        }
      }
    }
    moves.toSeq
  }
}
