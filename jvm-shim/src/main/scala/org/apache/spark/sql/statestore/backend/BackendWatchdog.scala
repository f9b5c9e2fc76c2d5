package org.apache.spark.sql.statestore.backend

import java.util.concurrent.{ConcurrentHashMap, CountDownLatch, TimeUnit}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.statestore.{BackendConnectionException, BackendTimeoutException}

/**
 * Timeout of a request to the backend.
 *
 * @param seconds  timeout of one storage call; the backend then fails the request itself
 */
private[statestore] final class RequestTimeout(val seconds: Long) {
  /** Longer than `seconds`, so that the backend reports its timeout first. */
  val nanos: Long = TimeUnit.SECONDS.toNanos(seconds + math.min(seconds, 10L))

  /** Timeout of a handshake with a busy backend, in seconds. */
  val pingSeconds: Long = math.max(2L, math.min(seconds, 20L))
}

private[statestore] object RequestTimeout {
  /** The default of the option `storageTimeoutSeconds`. */
  final val DefaultSeconds = 120L

  /** A request fails after so many timeouts although the backend answers handshakes. */
  final val MaxRounds = 10
}

/**
 * Watchdog of the connections on which threads wait.
 *
 * Guarantees: a request to a backend that is stopped or hangs as a whole fails after its timeout plus that of a
 * handshake, and the process is killed, so that the next request starts another one. If the backend answers
 * handshakes and only this request makes no progress (it is queued, or deletes many files), the request fails
 * after `MaxRounds` timeouts.
 *
 * @param ping     performs a handshake on a new connection; throws if it fails
 * @param abandon  kills an unresponsive process, which is not used any more
 */
private[statestore] final class BackendWatchdog(ping: BackendProcess => Unit, abandon: BackendProcess => Unit)
  extends Logging {
  import BackendWatchdog._

  private val waiting = ConcurrentHashMap.newKeySet[BackendConnection]
  @volatile private var thread: Thread = _

  def add(connection: BackendConnection): Unit = {
    if (thread == null) start()
    waiting.add(connection)
  }

  def remove(connection: BackendConnection): Unit = waiting.remove(connection)

  def stop(): Unit = synchronized {
    if (thread != null) thread.interrupt()
  }

  private def start(): Unit = synchronized {
    if (thread == null) {
      val starting = new Thread(() => run(), "state-store-backend-watch")
      starting.setDaemon(true)
      // An OutOfMemoryError at the limit of threads: the next request tries again.
      starting.start()
      thread = starting
    }
  }

  private def run(): Unit =
    try {
      while (true) {
        Thread.sleep(IntervalMillis)
        try checkOverdue() catch {
          // At the limit of threads a handshake cannot be tried; the next check does.
          case e @ (NonFatal(_) | _: OutOfMemoryError) =>
            logWarning("could not check the connections of the state store backend", e)
        }
      }
    } catch {
      case _: InterruptedException => // the backend was stopped with its session
    }

  private def checkOverdue(): Unit = {
    val now = System.nanoTime()
    val overdue = waiting.asScala.filter(_.isOverdue(now)).toSeq
    overdue.groupBy(_.process).foreach { case (process, connections) =>
      val timeout = connections.map(_.timeout).minBy(_.seconds)
      if (responds(process, timeout)) connections.filterNot(_.extend()).foreach(expire(process, _))
      else replace(process, timeout, connections)
    }
  }

  private def expire(process: BackendProcess, connection: BackendConnection): Unit =
    connection.expire(new BackendTimeoutException(
      s"the state store backend ${process.pid} answers handshakes, but has not answered this request for " +
        s"${TimeUnit.NANOSECONDS.toSeconds(connection.timeout.nanos * RequestTimeout.MaxRounds)} s. The task fails and " +
        "can be retried. Check that the storage is reachable; if its calls may take longer, raise the option " +
        "spark.sql.streaming.stateStore.backend.storageTimeoutSeconds."))

  private def replace(process: BackendProcess, timeout: RequestTimeout, silent: Seq[BackendConnection]): Unit = {
    val message = s"the state store backend ${process.pid} has been silent for " +
      s"${TimeUnit.NANOSECONDS.toSeconds(timeout.nanos)} s and did not answer a handshake within " +
      s"${timeout.pingSeconds} s: it is stopped or hangs, and is replaced by a new process"
    logWarning(message)
    abandon(process)
    // A process in uninterruptible sleep survives SIGKILL and keeps its connections open.
    (silent ++ waiting.asScala.filter(_.process eq process))
      .foreach(_.expire(new BackendConnectionException(message)))
  }

  private def responds(process: BackendProcess, timeout: RequestTimeout): Boolean = {
    val answered = new CountDownLatch(1)
    val pinging = new Thread(() => {
      try {
        ping(process)
        answered.countDown()
      } catch {
        case NonFatal(e) => logDebug(s"the state store backend ${process.pid} did not answer a handshake", e)
      }
    }, "state-store-backend-ping")
    pinging.setDaemon(true)
    pinging.start()
    val inTime = answered.await(timeout.pingSeconds, TimeUnit.SECONDS)
    // The interrupt closes its channel.
    if (!inTime) pinging.interrupt()
    inTime
  }
}

private[statestore] object BackendWatchdog {
  private final val IntervalMillis = 500L
}
