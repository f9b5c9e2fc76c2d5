package org.apache.spark.sql.statestore.provider

import java.util.{HashMap => JHashMap, LinkedHashSet => JLinkedHashSet}
import java.util.concurrent.{CountDownLatch, ExecutionException, FutureTask, ThreadPoolExecutor}

import scala.collection.mutable.ArrayBuffer
import scala.jdk.CollectionConverters._

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
  private final class Run(val id: String, val isActive: () => Boolean) {
    // As long as storage answers, the number is bounded by the tasks of a batch.
    val commits = new JLinkedHashSet[PendingCommit]

    // The newest version whose barrier has begun: tasks that commit it later are awaited by no batch.
    var closedUntil = -1L

    // What `prepareBarrier` has begun for the next barrier.
    var publication: Option[EarlyPublication] = None
  }

  // By commit log: the run that was announced last. Guarded by itself, with the commits of all runs.
  private val runs = new JHashMap[String, Run]

  // By commit log: the commits of earlier runs that have not ended.
  private val leftovers = new JHashMap[String, JLinkedHashSet[PendingCommit]]

  private lazy val executor: ThreadPoolExecutor =
    ThreadUtils.newDaemonCachedThreadPool("state-store-commits", MostThreads)

  private final val MostThreads = 32

  /** Set by Spark for the tasks of a micro-batch. */
  private final val BatchId = "streaming.sql.batchId"

  /**
   * Announces that a run of a query calls `barrier` before it adds a batch to its commit log. Another run of the query may use
   * another file manager, which does not. Earlier runs of the log have ended.
   *
   * @param isActive  false once the run has ended. It is asked when another run is announced
   */
  def announce(log: String, run: String, isActive: () => Boolean): Unit = {
    val (isNew, publication) = runs.synchronized {
      val current = runs.get(log)
      val isNew = current == null || current.id != run
      if (isNew) runs.put(log, new Run(run, isActive))
      (isNew, if (isNew && current != null) leave(log, current) else None)
    }
    publication.foreach(_.stop())
    if (isNew) endUnless(candidate => candidate.id == run || candidate.isActive())
  }

  /** Forgets a run that has ended. */
  def ended(run: String): Unit = endUnless(_.id != run)

  private def endUnless(isActive: Run => Boolean): Unit = {
    val (cancelled, publications) = runs.synchronized {
      val ended = runs.asScala.toSeq.filterNot { case (_, run) => isActive(run) }
      val begun = ended.flatMap { case (log, run) =>
        runs.remove(log)
        leave(log, run)
      }
      (leftovers.values.asScala.flatMap(_.asScala).toSeq, begun)
    }
    publications.foreach(_.stop())
    cancelled.foreach { commit =>
      commit.cancel()
      forgetEnded(commit)
    }
  }

  // A later run of the log waits for the end of the commits of earlier ones. The caller stops the publication.
  private def leave(log: String, run: Run): Option[EarlyPublication] = {
    if (!run.commits.isEmpty) leftovers.computeIfAbsent(log, _ => new JLinkedHashSet[PendingCommit]).addAll(run.commits)
    takePublication(run)
  }

  private def forgetEnded(commit: PendingCommit): Unit = if (commit.release()) runs.synchronized {
    leftovers.values.removeIf { commits =>
      commits.remove(commit)
      commits.isEmpty
    }
  }

  /** True if the calling task is of a micro-batch. */
  def isInBatch: Boolean = {
    val task = TaskContext.get()
    task != null && task.getLocalProperty(BatchId) != null
  }

  /**
   * True if a run adds a batch to its commit log only after `barrier`, and has not ended. Another copy of this class, of a
   * session with classes of its own, knows no runs.
   */
  def hasBarrier(log: String, run: String): Boolean = runs.synchronized {
    val current = runs.get(log)
    current != null && current.id == run
  }

  /** True if the commits of a run's tasks are published before its commit log gets their batch. */
  def isAwaited(log: String, run: String, hasIds: Boolean): Boolean =
    if (isLocal) hasBarrier(log, run) else hasIds && Handover.isPossible(log, run)

  def skippedBarrier(version: Long, store: String): IllegalStateException = new IllegalStateException(
    s"version $version of $store was handed over, and Spark went on to the next batch without waiting for it: the query's " +
      "commit log is not written through this store's BackendCheckpointFileManager. Nothing is lost. Set " +
      "spark.sql.streaming.stateStore.backend.commit=task.")

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
  private val queues = new JHashMap[Backend, Queue]

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

  /**
   * Takes a commit over.
   *
   * @throws EndedStoreException  if no barrier waits for it any more: it fails
   */
  def submit(log: String, commit: PendingCommit): Unit = {
    val isAwaited = runs.synchronized {
      val run = runs.get(log)
      run != null && run.id == commit.runId && commit.version > run.closedUntil && run.commits.add(commit)
    }
    if (!isAwaited) throw commit.refuse()
    CommitFigures.handedOver(log, commit.runId, commit.version)
    val bytes = commit.commit.bytes
    val handleBytes = commit.commit.handleBytes
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

  /** Waits for a latch, which may be replaced meanwhile; an interrupt of the thread is kept for later. */
  private[provider] def awaitUninterruptibly(latch: => CountDownLatch): Unit = {
    var interrupted = false
    while (latch.getCount > 0) {
      try latch.await() catch {
        case _: InterruptedException => interrupted = true
      }
    }
    if (interrupted) Thread.currentThread.interrupt()
  }

  /** Sends a commit that waits for others. */
  private[provider] def expedite(commit: PendingCommit): Unit = if (!commit.hasBegun) execute(commit)

  // Sends all commits that wait for others.
  private def flush(): Unit = {
    val waiting = queues.synchronized {
      val queueList = queues.values.asScala.toList
      queues.clear()
      queueList
    }
    waiting.foreach(queue => execute(() => sendTogether(queue.commits.toSeq)))
  }

  private def sendTogether(queued: Seq[PendingCommit]): Unit = {
    val commits = queued.filter(_.begin())
    if (commits.nonEmpty) {
      commits.foreach(_.runBy(Thread.currentThread))
      val replies =
        try StoreCommit.publishTogether(commits.map(_.commit)) catch {
          // Also of an interrupt, by which one of them was cancelled: a commit that never ends blocks its batch and the next run.
          case _: Throwable => new Array[CommitReply](commits.size)
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
    case _: OutOfMemoryError =>
      // The work clears the flag, by which a commit is cancelled.
      val interrupted = Thread.interrupted()
      try work.run() finally if (interrupted) Thread.currentThread.interrupt()
  }

  /** Waits until no commit of a store by a run that has ended is pending. */
  def settle(log: String, id: StateStoreId): Unit = {
    val earlier = runs.synchronized {
      Option(leftovers.get(log)).fold(Seq.empty[PendingCommit])(_.asScala.filter(_.id == id).toSeq)
    }
    earlier.foreach { commit =>
      commit.await()
      forgetEnded(commit)
    }
  }

  /**
   * Fails for a run whose commits `barrier` does not await.
   *
   * @throws IllegalStateException  if the run is not the one that was announced last for the log
   */
  def requireAnnounced(log: String, run: String): Unit = if (!hasBarrier(log, run)) throw new IllegalStateException(
    s"run $run adds a batch to the log $log, and is not the newest run of its query in this application: the commits of the " +
      "batch may not be durable. Nothing is lost: the batch is not committed, and the newest run, or the next one, runs it " +
      "again. Start one run of a query at a time.")

  /**
   * Waits until the commits of the calling thread's query are durable.
   *
   * @throws Throwable             the failure of one of them
   * @throws InterruptedException  if the query is stopped, which cancels them
   */
  def barrier(log: String): Unit = {
    val (run, commits, publication) = runs.synchronized {
      // Of a run that was not announced, and whose tasks publish their commits.
      val run = runs.getOrDefault(log, new Run("", () => true))
      run.commits.forEach(commit => run.closedUntil = math.max(run.closedUntil, commit.version))
      (run, run.commits.asScala.toSeq, takePublication(run))
    }
    flush()
    val failure = try {
      commits.foreach(_.await())
      publication.flatMap(_.failure)
    } catch {
      case e: InterruptedException =>
        commits.foreach(_.cancel())
        // It may be writing a commit alone, which the cancellation does not reach.
        publication.foreach(_.stop())
        commits.foreach(_.awaitUninterruptibly())
        throw e
    } finally {
      runs.synchronized(commits.foreach(run.commits.remove))
    }
    commits.iterator.flatMap(_.failure).foreach(throw _)
    failure.foreach(throw _)
    publishMerged(commits)
    commits.foreach(_.acknowledge())
  }

  private def takePublication(run: Run): Option[EarlyPublication] = {
    val publication = run.publication
    run.publication = None
    publication
  }

  // Not the threads that send commits, all of which could wait for commits that no thread is left to send.
  private lazy val publications = ThreadUtils.newDaemonCachedThreadPool("state-store-publications")

  /**
   * Begins what `barrier` waits for, if tasks have handed commits over. In real-time mode Spark adds a batch to its log of
   * offsets after the batch's tasks have ended; in other modes before they begin, when no commit is pending.
   */
  def prepareBarrier(log: String): Unit = runs.synchronized {
    val run = runs.get(log)
    if (run != null && !run.commits.isEmpty && run.publication.isEmpty) {
      val publication = new EarlyPublication(run.commits.asScala.toSeq)
      try {
        publications.execute(publication)
        run.publication = Some(publication)
      } catch {
        // No thread can be started: the barrier publishes.
        case _: OutOfMemoryError =>
      }
    }
  }

  /** Stops what `prepareBarrier` has begun, and waits for its end: no barrier follows. */
  def abandonBarrier(log: String): Unit =
    runs.synchronized(Option(runs.get(log)).flatMap(takePublication)).foreach(_.stop())

  /** The publication of commits before the barrier of their batch, which awaits it and fails if it has failed. */
  private final class EarlyPublication(commits: Seq[PendingCommit]) extends FutureTask[Unit](() => {
    flush()
    commits.foreach(_.await())
    // The barrier reports a commit that has failed.
    if (commits.forall(_.failure.isEmpty)) publishMerged(commits)
  }) {
    private val ended = new CountDownLatch(1)

    override def run(): Unit = try super.run() finally ended.countDown()

    // Waits for its end.
    def failure: Option[Throwable] = try {
      get()
      None
    } catch {
      case e: ExecutionException => Some(e.getCause)
    }

    def stop(): Unit = {
      cancel(true)
      awaitUninterruptibly(ended)
    }
  }

  // Publishes the merged files of a query.
  private def publishMerged(commits: Seq[PendingCommit]): Unit =
    commits.filter(_.isMerged).groupBy(_.client.backend).values.foreach(publish)

  private def publish(merged: Seq[PendingCommit]): Unit = {
    val missing = merged.head.client.publish(merged.map(_.version).max, merged.map(_.attemptId))
    merged.filter(commit => missing.contains(commit.attemptId)).foreach(_.publishAlone())
    merged.foreach(_.isMerged = false)
  }
}
