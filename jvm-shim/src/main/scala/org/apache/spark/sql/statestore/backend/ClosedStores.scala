package org.apache.spark.sql.statestore.backend

import java.util.concurrent.{ConcurrentLinkedQueue, TimeUnit}
import java.util.concurrent.atomic.AtomicBoolean

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.node.ArrayNode

import org.apache.spark.internal.Logging
import org.apache.spark.util.ThreadUtils

/**
 * Tells this JVM's backends which stores are closed and which runs have ended, so that they free what they keep of them.
 *
 * Guarantees: the caller waits for nothing, and no backend is started. What is lost, as a backend does not answer, costs memory only; a
 * request that a backend gets afterwards opens its store again.
 */
private[statestore] object ClosedStores extends Logging {
  // Stores close in numbers, and what they do in the background at that time comes first.
  private final val DelaySeconds = 5L

  private val instances, runs = new ConcurrentLinkedQueue[String]
  private val isScheduled = new AtomicBoolean
  private val timeout = new RequestTimeout(RequestTimeout.DefaultSeconds)

  private lazy val timer = ThreadUtils.newDaemonSingleThreadScheduledExecutor("state-store-closed")

  /** Records that a store is closed, by the id of its instance. */
  def closed(instance: String): Unit = {
    instances.add(instance)
    schedule()
  }

  /** Records that a run of a query has ended. */
  def ended(run: String): Unit = {
    runs.add(run)
    schedule()
  }

  private def schedule(): Unit =
    if (isScheduled.compareAndSet(false, true)) timer.schedule((() => send()): Runnable, DelaySeconds, TimeUnit.SECONDS)

  private def send(): Unit = {
    isScheduled.set(false)
    val request = CheckpointClient.mapper.createObjectNode().put("op", "close")
    drain(instances, request.putArray("instances"))
    drain(runs, request.putArray("runs"))
    Backend.running.foreach { backend =>
      try backend.exchangeOnce(timeout)(Backend.roundTrip(_, request)) catch {
        case NonFatal(e) => logDebug("a state store backend was not told which stores are closed", e)
      }
    }
  }

  private def drain(from: ConcurrentLinkedQueue[String], to: ArrayNode): Unit = {
    var next = from.poll()
    while (next != null) {
      to.add(next)
      next = from.poll()
    }
  }
}
