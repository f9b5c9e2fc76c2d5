package org.apache.spark.sql.statestore.driver

import scala.concurrent.duration.Duration

import org.apache.hadoop.conf.Configuration

import org.apache.spark.{Partition, SparkContext, SparkEnv, TaskContext}
import org.apache.spark.broadcast.Broadcast
import org.apache.spark.internal.Logging
import org.apache.spark.internal.config.SPECULATION_ENABLED
import org.apache.spark.rdd.RDD
import org.apache.spark.scheduler.ExecutorCacheTaskLocation
import org.apache.spark.sql.statestore.provider.{PreparedStates, PreparedStore}
import org.apache.spark.util.{SerializableConfiguration, ThreadUtils}

/** The stores of each partition that an executor is to load. */
private[statestore] final case class Preparation(place: Place, partitions: Seq[Seq[PreparedStore]])

/** A Spark job that loads state on the executors that it moves to, a task for each executor. */
private[statestore] object StatePreparation extends Logging {
  /** Runs the job; returns whether each partition was loaded. A task that Spark has run elsewhere loads nothing. */
  def run(
      context: SparkContext, hadoopConf: Configuration, run: String, preparations: Seq[Preparation]): Seq[Seq[Boolean]] = {
    val conf = context.broadcast(new SerializableConfiguration(hadoopConf))
    val loaded = preparations.map(_.partitions.map(_ => false)).toArray
    try {
      val tasks = new Preparations(context, preparations, conf)
      context.setJobDescription(s"State of the run $run is loaded on executors that it moves to")
      val job = context.submitJob[Seq[Boolean], Seq[Boolean], Unit](
        tasks, _.next(), preparations.indices, (i, partitions) => loaded.synchronized(loaded(i) = partitions), ())
      ThreadUtils.awaitReady(job, Duration.Inf).value.foreach(_.failed.foreach { e =>
        logWarning(s"state of the run $run was not loaded on the executors that it is to move to", e)
      })
    } finally {
      conf.destroy()
    }
    loaded.synchronized(loaded.toSeq)
  }
}

private final class Preparations(
    context: SparkContext, @transient private val preparations: Seq[Preparation],
    conf: Broadcast[SerializableConfiguration])
  extends RDD[Seq[Boolean]](context, Nil) {

  override protected def getPartitions: Array[Partition] =
    preparations.indices.map(i => new PreparedPartition(i, preparations(i))).toArray

  override protected def getPreferredLocations(split: Partition): Seq[String] = {
    val place = split.asInstanceOf[PreparedPartition].preparation.place
    Seq(ExecutorCacheTaskLocation(place.host, place.executor).toString)
  }

  override def compute(split: Partition, task: TaskContext): Iterator[Seq[Boolean]] = {
    val preparation = split.asInstanceOf[PreparedPartition].preparation
    val isHere = SparkEnv.get.executorId == preparation.place.executor
    if (!isHere) awaitOther(task)
    Iterator(preparation.partitions.map(stores => isHere && PreparedStates.prepare(stores, conf.value.value)))
  }

  // A speculative copy must not end before the task that loads the state.
  private def awaitOther(task: TaskContext): Unit = if (task.attemptNumber() > 0 && SparkEnv.get.conf.get(SPECULATION_ENABLED)) {
    val end = System.nanoTime() + 60000000000L
    while (!task.isInterrupted() && System.nanoTime() < end) Thread.sleep(100)
  }
}

private final class PreparedPartition(override val index: Int, val preparation: Preparation) extends Partition
