package org.apache.spark.sql.statestore.provider

import java.util.concurrent.{ConcurrentHashMap, CountDownLatch, ThreadPoolExecutor}

import scala.jdk.CollectionConverters._

import org.apache.spark.{SparkContext, SparkEnv, TaskContext}
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.statestore.InvalidOptionException
import org.apache.spark.sql.statestore.backend.{CheckpointClient, CommitReply, Publication}
import org.apache.spark.sql.statestore.driver.DriverCheckpointStore
import org.apache.spark.util.ThreadUtils

/**
 * A commit that a task has handed over: another thread sends it to the backend.
 *
 * @param runId    run of the query
 * @param commit   the commit
 * @param publish  sends it
 * @param end      called once the state that it refers to may change
 */
private[statestore] final class PendingCommit(
    val runId: String,
    val id: StateStoreId,
    commit: StoreCommit,
    private var publish: Publication => CommitReply,
    private var end: () => Unit)
  extends Runnable {

  val version: Long = commit.version
  val attemptId: String = commit.attemptId
  val client: CheckpointClient = commit.client
  @volatile private var ended = new CountDownLatch(1)
  @volatile private var error: Throwable = _

  /** True if it is durable only once the merged files of its query are published. */
  @volatile private[provider] var isMerged = false

  /** True once the batch's barrier has found the commit durable. */
  @volatile private var acknowledged = false

  // Guarded by `this`.
  private var isReleased = false
  private var runner: Thread = _
  private var isCancelled = false

  override def run(): Unit = try {
    synchronized {
      runner = Thread.currentThread
      if (isCancelled) runner.interrupt()
    }
    isMerged = publish(Publication.Merged).isMerged
  } catch {
    case e: Throwable => error = e
  } finally {
    synchronized {
      runner = null
      Thread.interrupted()
      endUse()
    }
  }

  private def endUse(): Unit = synchronized {
    ended.countDown()
    if (isReleased) forgetState() else if (!isMerged) release()
  }

  private def forgetState(): Unit = {
    end()
    publish = null
    end = null
  }

  /** Publishes it in a file of its own, since the backend that had it has ended. */
  private[provider] def publishAlone(): Unit = {
    synchronized {
      if (isReleased) {
        throw new IllegalStateException(
          s"version $version of operator ${id.operatorId}, partition ${id.partitionId}, store ${id.storeName} at " +
            s"${id.storeCheckpointLocation()} is not committed: the backend process that had it has ended, and the state has " +
            "changed since. Nothing is lost. Restart the query, which runs the batch again.")
      }
      ended = new CountDownLatch(1)
    }
    try isMerged = publish(Publication.Alone).isMerged finally endUse()
  }

  /** Lets the state that it refers to change, at once if it has ended; returns whether it has. */
  def release(): Boolean = synchronized {
    val isNew = !isReleased
    isReleased = true
    if (isNew && hasEnded) forgetState()
    hasEnded
  }

  def isAcknowledged: Boolean = acknowledged

  private[provider] def acknowledge(): Unit = {
    acknowledged = true
    release()
  }

  /** Lets it fail as the commit of a killed task, also while storage hangs. */
  def cancel(): Unit = synchronized {
    isCancelled = true
    if (runner != null) runner.interrupt()
  }

  def hasEnded: Boolean = ended.getCount == 0

  /** The reason why the version was not published; None if it was, or is not yet. */
  def failure: Option[Throwable] = synchronized {
    if (error == null || !isCancelled) Option(error)
    else Some(new IllegalStateException(
      s"version $version of operator ${id.operatorId}, partition ${id.partitionId}, store ${id.storeName} at " +
        s"${id.storeCheckpointLocation()} is not committed, since another run has loaded the store: two queries run with " +
        "one checkpointLocation. Nothing is lost. Stop one of them; the other continues from the last batch.", error))
  }

  /** Waits for the end. */
  def await(): Unit = ended.await()

  /** Waits for the end, also if the thread is interrupted: the caller would change the state that is read. */
  def awaitUninterruptibly(): Unit = {
    var interrupted = false
    while (!hasEnded) {
      try ended.await() catch {
        case _: InterruptedException => interrupted = true
      }
    }
    if (interrupted) Thread.currentThread.interrupt()
  }
}

/**
 * The commits of this JVM that tasks have handed over, by the commit log of their query.
 *
 * Guarantees: Spark's commit log gets a batch only after `barrier` has found every commit of the batch
 * durable. Commits of one store are published in the order in which they were handed over: a store waits for its
 * last one before it hands the next one over.
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

  /** Takes a commit over. */
  def submit(log: String, commit: PendingCommit): Unit = {
    handedOver.compute(log, (_, known) => {
      val commits = if (known == null) ConcurrentHashMap.newKeySet[PendingCommit]() else known
      commits.add(commit)
      commits
    })
    try executor.execute(commit) catch {
      // No thread can be started: others would wait for ever for a commit that does not run.
      case _: OutOfMemoryError => commit.run()
    }
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
    val missing = merged.head.client.publish(merged.map(_.attemptId))
    merged.filter(commit => missing.contains(commit.attemptId)).foreach(_.publishAlone())
  }

  private def of(log: String): Seq[PendingCommit] =
    Option(handedOver.get(log)).fold(Seq.empty[PendingCommit])(_.asScala.toSeq)
}
