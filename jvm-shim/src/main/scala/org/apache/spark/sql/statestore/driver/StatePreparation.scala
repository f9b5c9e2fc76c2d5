package org.apache.spark.sql.statestore.driver

import scala.collection.mutable
import scala.concurrent.duration.Duration
import scala.reflect.ClassTag

import org.apache.hadoop.conf.Configuration

import org.apache.spark.{Partition, SparkContext, TaskContext}
import org.apache.spark.broadcast.Broadcast
import org.apache.spark.rdd.RDD
import org.apache.spark.scheduler.ExecutorCacheTaskLocation
import org.apache.spark.sql.statestore.provider.{PreparedStates, PreparedStore}
import org.apache.spark.util.{SerializableConfiguration, ThreadUtils}

/** The stores of a partition that an executor is to load. */
private[statestore] final case class Preparation(place: Place, stores: Seq[PreparedStore])

/** A Spark job that loads state on the executors that it moves to, a task for each partition. */
private[statestore] object StatePreparation {
  /** Runs the job; returns the indices of what was loaded. A task that Spark has run elsewhere loads nothing. */
  def run(context: SparkContext, hadoopConf: Configuration, run: String, preparations: Seq[Preparation]): Set[Int] = {
    val conf = context.broadcast(new SerializableConfiguration(hadoopConf))
    val loaded = mutable.Set.empty[Int]
    try {
      val tasks = new Preparations(context, preparations, conf)
      context.setJobDescription(s"State of the run $run is loaded on executors that it moves to")
      ThreadUtils.awaitReady(
        context.submitJob[Boolean, Boolean, Unit](
          tasks, _.next(), preparations.indices, (i, isLoaded) => if (isLoaded) loaded.synchronized(loaded += i), ()),
        Duration.Inf)
    } finally {
      conf.destroy()
    }
    loaded.synchronized(loaded.toSet)
  }
}

private final class Preparations(
    context: SparkContext, @transient private val preparations: Seq[Preparation],
    conf: Broadcast[SerializableConfiguration])
  extends RDD[Boolean](context, Nil)(ClassTag.Boolean) {

  override protected def getPartitions: Array[Partition] =
    preparations.indices.map(i => new PreparedPartition(i, preparations(i))).toArray

  override protected def getPreferredLocations(split: Partition): Seq[String] = {
    val place = split.asInstanceOf[PreparedPartition].preparation.place
    Seq(ExecutorCacheTaskLocation(place.host, place.executor).toString)
  }

  override def compute(split: Partition, task: TaskContext): Iterator[Boolean] = {
    val preparation = split.asInstanceOf[PreparedPartition].preparation
    Iterator(PreparedStates.prepare(preparation.place.executor, preparation.stores, conf.value.value))
  }
}

private final class PreparedPartition(override val index: Int, val preparation: Preparation) extends Partition
