package org.apache.spark.sql.statestore.provider

import java.util.concurrent.{ConcurrentHashMap, ThreadPoolExecutor}

import scala.collection.mutable.ArrayBuffer
import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.{SparkContext, SparkEnv, TaskContext}
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.statestore.InvalidOptionException
import org.apache.spark.sql.statestore.backend.{Backend, CommitReply}
import org.apache.spark.sql.statestore.driver.{CommitFigures, DriverCheckpointStore}
import org.apache.spark.util.ThreadUtils

/**
 * The commits of this JVM that tasks have handed over, by the commit log of their query.
 *
 * Guarantees: Spark's commit log gets a batch only after `barrier` has found every commit of the batch
 * durable. Commits of one store are published in the order in which they were handed over: a store waits for its
 * last one before it hands the next one over. Small commits wait for others, at the latest for `barrier`, and are sent
 * together.
 *
 * Spark's driver and tasks must share this JVM; on a cluster see `Handover`.
 */
private[statestore] object CommitCollector {
  // As long as storage answers, the number is bounded by the tasks of a batch.
  private val handedOver = new ConcurrentHashMap[String, java.util.Set[PendingCommit]]

  private lazy val executor: ThreadPoolExecutor =
    ThreadUtils.newDaemonCachedThreadPool("state-store-commits", MostThreads)

  private final val MostThreads = 32

  /** Set by Spark for the tasks of a micro-batch. */
  private final val BatchId = "streaming.sql.batchId"

  // Runs by their commit log, the one that was asked for longest ago first.
  private val runs = new java.util.LinkedHashSet[(String, String)]
  private final val MostRuns = 1000

  /**
   * Announces that the run of the calling thread, if it is one of a query, calls `barrier` before it adds a batch to its commit
   * log. Another run of the query may use another file manager, which does not.
   */
  def announce(log: String): Unit = currentRun.foreach(run => runs.synchronized {
    touch((log, run))
    if (runs.size > MostRuns) runs.remove(runs.iterator.next())
  })

  private def touch(run: (String, String)): Unit = {
    runs.remove(run)
    runs.add(run)
  }

  // Spark names the job group of a query's thread for its run.
  private def currentRun: Option[String] =
    SparkContext.getActive.flatMap(context => Option(context.getLocalProperty("spark.jobGroup.id")))

  /** True if the calling task is of a micro-batch. */
  def isInBatch: Boolean = {
    val task = TaskContext.get()
    task != null && task.getLocalProperty(BatchId) != null
  }

  /**
   * True if a run adds a batch to its commit log only after `barrier`. Another copy of this class, of a session with classes of
   * its own, knows no runs.
   */
  def hasBarrier(log: String, run: String): Boolean = runs.synchronized {
    val isKnown = runs.contains((log, run))
    if (isKnown) touch((log, run))
    isKnown
  }

  /** True if the commits of a run's tasks are published before its commit log gets their batch. */
  def isAwaited(log: String, run: String, hasIds: Boolean): Boolean =
    if (isLocal) hasBarrier(log, run) else hasIds && Handover.isPossible(log, run)

  def noBarrier(store: String): InvalidOptionException = new InvalidOptionException(
    s"'${BackendOptions.Prefix}commit' is 'batch', which needs storage in files, Spark's own files written through the " +
      "backend (spark_files=\"backend\", the default of configure), and on a cluster checkpoint format v2 " +
      "(spark.sql.streaming.stateStore.checkpointFormatVersion=2) and " + DriverCheckpointStore.PluginLine +
      s". Set it to 'auto' or 'task'; nothing was changed: $store")

  /** True if tasks run in the driver's JVM. */
  def isLocal: Boolean = {
    val env = SparkEnv.get
    env != null && env.executorId == SparkContext.DRIVER_IDENTIFIER
  }

  // Small commits by their backend, to be sent together.
  private val queues = new java.util.HashMap[Backend, Queue]

  private final class Queue {
    val commits = new ArrayBuffer[PendingCommit]
    var bytes = 0L
    var handleBytes = 0L

    def isFull(most: Int): Boolean =
      commits.size >= most || bytes >= MostBytes || handleBytes >= MostHandleBytes
  }

  private final val FewestTogether = 4
  private final val MostTogether = 16

  // Number of commits that the calling task's are sent with. The barrier waits for the last ones, which counts in a batch
  // of few tasks. Of many tasks each exchange takes processor time from those that still run.
  private def together: Int = {
    val task = TaskContext.get()
    val tasks = if (task == null) 1 else task.numPartitions()
    math.max(FewestTogether, math.min(MostTogether, tasks / 8))
  }

  // A commit of so many bytes is sent at once, by itself.
  private final val LargeCommit = 64L << 10
  private final val MostBytes = 256L << 10

  // The backend sends the handles back, which must fit into the buffers of its socket.
  private final val MostHandleBytes = 48L << 10

  /** Takes a commit over. */
  def submit(log: String, commit: PendingCommit): Unit = {
    CommitFigures.handedOver(log, commit.runId, commit.version)
    val bytes = commit.commit.bytes
    val handleBytes = commit.commit.handleBytes
    handedOver.compute(log, (_, known) => {
      val commits = if (known == null) ConcurrentHashMap.newKeySet[PendingCommit]() else known
      commits.add(commit)
      commits
    })
    if (bytes >= LargeCommit || handleBytes >= MostHandleBytes) execute(commit)
    else enqueue(commit, bytes, handleBytes)
  }

  private def enqueue(commit: PendingCommit, bytes: Long, handleBytes: Long): Unit = {
    val full = queues.synchronized {
      val queue = queues.computeIfAbsent(commit.client.backend, _ => new Queue)
      queue.commits += commit
      queue.bytes += bytes
      queue.handleBytes += handleBytes
      if (queue.isFull(together)) queues.remove(commit.client.backend) else null
    }
    if (full != null) execute(() => sendTogether(full.commits.toSeq))
  }

  /** Sends a commit that waits for others. */
  private[provider] def expedite(commit: PendingCommit): Unit = if (!commit.hasBegun) execute(commit)

  // Sends all commits that wait for others.
  private def flush(): Unit = {
    val waiting = queues.synchronized {
      val found = queues.values.asScala.toList
      queues.clear()
      found
    }
    waiting.foreach(queue => execute(() => sendTogether(queue.commits.toSeq)))
  }

  private def sendTogether(queued: Seq[PendingCommit]): Unit = {
    val commits = queued.filter(_.begin())
    if (commits.nonEmpty) {
      commits.foreach(_.runBy(Thread.currentThread))
      val replies =
        try StoreCommit.publishTogether(commits.map(_.commit)) catch {
          case NonFatal(_) => new Array[CommitReply](commits.size)
        }
      commits.foreach(_.runBy(null))
      Thread.interrupted()
      commits.zip(replies).foreach { case (commit, reply) => if (reply != null) commit.accept(reply) }
      // By themselves, with repetitions; their errors are reported.
      commits.zip(replies).foreach { case (commit, reply) =>
        if (reply == null) {
          commit.runBy(Thread.currentThread)
          commit.publish()
        }
      }
    }
  }

  private def execute(work: Runnable): Unit = try executor.execute(work) catch {
    // No thread can be started: others would wait for ever for a commit that does not run.
    case _: OutOfMemoryError => work.run()
  }

  /** Waits until no other run's commit of a store is pending: such a run has ended, or gets an error. */
  def settle(log: String, id: StateStoreId, runId: String): Unit =
    of(log).filter(commit => commit.id == id && commit.runId != runId).foreach { commit =>
      commit.cancel()
      commit.awaitUninterruptibly()
      commit.release()
    }

  /**
   * Waits until the commits of the calling thread's query are durable.
   *
   * @throws Throwable             the failure of one of them
   * @throws InterruptedException  if the query is stopped, which cancels them
   */
  def barrier(log: String): Unit = {
    val all = of(log)
    // User code may have given its jobs another group: then commits of other runs count as well.
    val run = currentRun
    val own = all.filter(commit => run.contains(commit.runId))
    val commits = if (own.isEmpty) all else own
    flush()
    try commits.foreach(_.await()) catch {
      case e: InterruptedException =>
        commits.foreach(_.cancel())
        commits.foreach(_.awaitUninterruptibly())
        throw e
    } finally {
      handedOver.computeIfPresent(log, (_, known) => {
        commits.foreach(known.remove)
        if (known.isEmpty) null else known
      })
    }
    commits.iterator.flatMap(_.failure).foreach(throw _)
    commits.filter(_.isMerged).groupBy(_.client.backend).values.foreach(publish)
    commits.foreach(_.acknowledge())
  }

  // Publishes the merged files of a query.
  private def publish(merged: Seq[PendingCommit]): Unit = {
    val missing = merged.head.client.publish(merged.map(_.version).max, merged.map(_.attemptId))
    merged.filter(commit => missing.contains(commit.attemptId)).foreach(_.publishAlone())
  }

  private def of(log: String): Seq[PendingCommit] =
    Option(handedOver.get(log)).fold(Seq.empty[PendingCommit])(_.asScala.toSeq)
}
