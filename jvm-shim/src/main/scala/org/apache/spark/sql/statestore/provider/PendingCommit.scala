package org.apache.spark.sql.statestore.provider

import java.util.concurrent.{CountDownLatch, TimeUnit}
import java.util.concurrent.atomic.AtomicBoolean

import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.statestore.EndedStoreException
import org.apache.spark.sql.statestore.backend.{CheckpointClient, CommitReply, Publication}

/**
 * A commit that a task has handed over: another thread sends it to the backend.
 *
 * Guarantees: one thread sends it, once; the state that it refers to is unchanged until `end` was called.
 *
 * @param runId      run of the query
 * @param commit     the commit
 * @param published  called with the backend's reply
 * @param failed     called if it is not published
 * @param end        called once the state that it refers to may change
 */
private[statestore] final class PendingCommit(
    val runId: String,
    val id: StateStoreId,
    private[provider] var commit: StoreCommit,
    private var published: CommitReply => Unit,
    private var failed: () => Unit,
    private var end: () => Unit)
  extends Runnable {

  val version: Long = commit.version
  val attemptId: String = commit.attemptId
  val client: CheckpointClient = commit.client
  @volatile private var ended = new CountDownLatch(1)
  @volatile private var error: Throwable = _
  private val begun = new AtomicBoolean

  /** True if it is durable only once the merged files of its query are published. */
  @volatile private[provider] var isMerged = false

  /** True once the batch's barrier has found the commit durable. */
  @volatile private var acknowledged = false

  // Guarded by `this`.
  private var isReleased = false
  private var runner: Thread = _
  private var isCancelled = false

  /** Fails a commit that nothing awaits; returns the error. */
  private[provider] def refuse(): EndedStoreException = {
    val refused = new EndedStoreException(version - 1,
      s"version $version of operator ${id.operatorId}, partition ${id.partitionId}, store ${id.storeName} at " +
        s"${id.storeCheckpointLocation()} is not committed by this task: its batch is complete, or its run has ended. Nothing is " +
        "lost: another attempt commits it.")
    begun.set(true)
    endWith(refused)
    refused
  }

  /** Sends it, unless another thread does or has. */
  override def run(): Unit = if (begin()) {
    runBy(Thread.currentThread)
    publish()
  }

  /** True for the first caller, which then sends it; false if it is cancelled, and then has ended. */
  private[provider] def begin(): Boolean = begun.compareAndSet(false, true) && {
    val isSent = synchronized(!isCancelled)
    if (!isSent) endWith(new InterruptedException("the run of this commit has ended"))
    isSent
  }

  /** Sets the thread that `cancel` interrupts. */
  private[provider] def runBy(thread: Thread): Unit = synchronized {
    runner = thread
    if (isCancelled && thread != null) thread.interrupt()
  }

  /** Sends it by itself. */
  private[provider] def publish(): Unit = try take(commit.publish(Publication.Merged)) catch {
    case e: Throwable => fail(e)
  } finally {
    synchronized {
      runBy(null)
      Thread.interrupted()
      endUse()
    }
  }

  /** Takes the reply of an exchange of several commits. */
  private[provider] def accept(reply: CommitReply): Unit = try take(reply) catch {
    case e: Throwable => fail(e)
  } finally {
    endUse()
  }

  private def take(reply: CommitReply): Unit = {
    published(reply)
    isMerged = reply.isMerged
  }

  private def endWith(e: Throwable): Unit = {
    fail(e)
    endUse()
  }

  private def fail(e: Throwable): Unit = {
    error = e
    failed()
  }

  private def endUse(): Unit = synchronized {
    ended.countDown()
    if (isReleased) forgetState() else if (!isMerged) release()
  }

  private def forgetState(): Unit = {
    end()
    commit = null
    published = null
    failed = null
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
    try take(commit.publish(Publication.Alone)) catch {
      case e: Throwable =>
        failed()
        throw e
    } finally endUse()
  }

  /** Lets the state that it refers to change, at once if it has ended; returns whether it has. */
  def release(): Boolean = synchronized {
    val isNew = !isReleased
    isReleased = true
    if (isNew && hasEnded) forgetState()
    if (!hasEnded) CommitCollector.expedite(this)
    hasEnded
  }

  def isAcknowledged: Boolean = acknowledged

  private[provider] def acknowledge(): Unit = {
    acknowledged = true
    release()
  }

  /** Lets it fail as the commit of a killed task, also while storage hangs. */
  def cancel(): Unit = {
    synchronized {
      isCancelled = true
      if (runner != null) runner.interrupt()
    }
    // Ends it if it was not sent yet.
    begin()
  }

  def hasEnded: Boolean = ended.getCount == 0

  /** True if a thread sends it, or has. */
  private[provider] def hasBegun: Boolean = begun.get

  /** The reason why the version was not published; None if it was, or is not yet. */
  def failure: Option[Throwable] = synchronized {
    if (error == null || !isCancelled) Option(error)
    else Some(new IllegalStateException(
      s"version $version of operator ${id.operatorId}, partition ${id.partitionId}, store ${id.storeName} at " +
        s"${id.storeCheckpointLocation()} is not committed, since another run has loaded the store: two queries run with " +
        "one checkpointLocation. Nothing is lost. Stop one of them; the other continues from the last batch.", error))
  }

  /** Waits for the end of a commit that is about to be sent. */
  def await(): Unit = if (!ended.await(100, TimeUnit.MILLISECONDS)) {
    // A task that outlives its batch may hand it over now.
    CommitCollector.expedite(this)
    ended.await()
  }

  /** Waits for the end, also if the thread is interrupted: the caller would change the state that is read. */
  def awaitUninterruptibly(): Unit = {
    CommitCollector.expedite(this)
    CommitCollector.awaitUninterruptibly(ended)
  }
}
