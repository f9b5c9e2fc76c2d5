package org.apache.spark.sql.statestore.io

import java.util.concurrent.{ConcurrentHashMap, CountDownLatch, TimeUnit}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.statestore.{BackendConnectionException, BackendTimeoutException}

/**
 * How long somebody waits for a backend that says nothing.
 *
 * @param seconds  what a call of storage may take; the backend itself gives a request up then, and says so
 */
private[statestore] final class Patience(val seconds: Long) {
  /** Somewhat longer, so that the backend speaks first. */
  val nanos: Long = TimeUnit.SECONDS.toNanos(seconds + math.min(seconds, 10L))

  /** What a greeting may take of a backend that is busy. */
  val pingSeconds: Long = math.max(2L, math.min(seconds, 20L))
}

private[statestore] object Patience {
  /** The default of the option `storageTimeoutSeconds`. */
  final val DefaultSeconds = 120L

  /** So often one that is silent is asked whether it is there. */
  final val MostRounds = 10
}

/**
 * Looks after the connections on which threads wait.
 *
 * Guarantees: whoever waits for a backend that is stopped or hangs as a whole is told after his patience and
 * the time of a ping, and that process is ended, so that the next request meets another one. Where the backend
 * lives and only a request says nothing, as with one that waits until others are done or deletes much, he waits
 * on, and fails after ten times his patience.
 *
 * @param ping     greets a backend; fails if it does not answer
 * @param abandon  ends a process that does not, and has nobody use it any more
 */
private[io] final class BackendWatch(ping: BackendProcess => Unit, abandon: BackendProcess => Unit) extends Logging {
  import BackendWatch._

  private val waiting = ConcurrentHashMap.newKeySet[BackendConnection]
  @volatile private var thread: Thread = _

  def add(connection: BackendConnection): Unit = {
    waiting.add(connection)
    if (thread == null) start()
  }

  def remove(connection: BackendConnection): Unit = waiting.remove(connection)

  def stop(): Unit = synchronized {
    if (thread != null) thread.interrupt()
  }

  private def start(): Unit = synchronized {
    if (thread == null) {
      thread = new Thread(() => lookOn(), "state-store-backend-watch")
      thread.setDaemon(true)
      thread.start()
    }
  }

  private def lookOn(): Unit =
    try {
      while (true) {
        Thread.sleep(LookMillis)
        try look() catch {
          case NonFatal(e) => logWarning("could not look after the state store backend", e)
        }
      }
    } catch {
      case _: InterruptedException => // the backend was stopped with its session
    }

  private def look(): Unit = {
    val now = System.nanoTime()
    val overdue = waiting.asScala.filter(_.isOverdue(now)).toSeq
    overdue.groupBy(_.process).foreach { case (process, connections) =>
      val patience = connections.map(_.patience).minBy(_.seconds)
      if (answers(process, patience)) connections.filterNot(_.waitOn()).foreach(giveUp(process, _))
      else replace(process, patience, connections)
    }
  }

  private def giveUp(process: BackendProcess, connection: BackendConnection): Unit =
    connection.expire(new BackendTimeoutException(
      s"the state store backend ${process.pid} answers greetings, but has said nothing to this request for " +
        s"${TimeUnit.NANOSECONDS.toSeconds(connection.patience.nanos * Patience.MostRounds)} s. The task can be " +
        "run again. Check that the storage is reachable; if its calls may take longer, raise the option " +
        "spark.sql.streaming.stateStore.backend.storageTimeoutSeconds."))

  private def replace(process: BackendProcess, patience: Patience, silent: Seq[BackendConnection]): Unit = {
    val message = s"the state store backend ${process.pid} has said nothing for " +
      s"${TimeUnit.NANOSECONDS.toSeconds(patience.nanos)} s and did not answer a greeting within " +
      s"${patience.pingSeconds} s: it was stopped, or hangs, and is replaced by another one"
    logWarning(message)
    abandon(process)
    // One that cannot even be killed, as it waits for a disk, keeps its connections open.
    (silent ++ waiting.asScala.filter(_.process eq process))
      .foreach(_.expire(new BackendConnectionException(message)))
  }

  private def answers(process: BackendProcess, patience: Patience): Boolean = {
    val answered = new CountDownLatch(1)
    val pinging = new Thread(() => {
      try {
        ping(process)
        answered.countDown()
      } catch {
        case NonFatal(e) => logDebug(s"the state store backend ${process.pid} did not answer a greeting", e)
      }
    }, "state-store-backend-ping")
    pinging.setDaemon(true)
    pinging.start()
    val inTime = answered.await(patience.pingSeconds, TimeUnit.SECONDS)
    // Its channel closes with that.
    if (!inTime) pinging.interrupt()
    inTime
  }
}

private[io] object BackendWatch {
  private final val LookMillis = 500L
}
