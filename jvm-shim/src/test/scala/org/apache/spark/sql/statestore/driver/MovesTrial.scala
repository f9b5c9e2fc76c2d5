package org.apache.spark.sql.statestore.driver

import scala.jdk.CollectionConverters._

/** Calls `PartitionMoves.due` for tests. */
object MovesTrial {
  /**
   * @param places     executors of the partitions, null for none
   * @param elsewhere  partitions of other operators on each of the executors
   * @param staying    partitions that stay
   * @return           pairs of a partition and its new executor
   */
  def due(
      places: java.util.List[String], executors: java.util.List[String], elsewhere: java.util.List[Int],
      staying: java.util.List[Int], most: Int): java.util.List[String] = {
    val otherPartitions = executors.asScala.zip(elsewhere.asScala).toMap
    PartitionMoves.due(
      places.asScala.map(Option(_)).toIndexedSeq, executors.asScala.toSeq, otherPartitions, !staying.contains(_), most, salt = 0)
      .map(move => s"${move.partition} ${move.executor}").asJava
  }
}
