package org.apache.spark.sql.statestore.provider

import java.lang.management.{ManagementFactory, MemoryType}
import java.util.WeakHashMap
import javax.management.{Notification, NotificationEmitter, NotificationListener}
import javax.management.openmbean.CompositeData

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.sun.management.GarbageCollectionNotificationInfo

import org.apache.spark.internal.Logging
import org.apache.spark.sql.statestore.CheckpointStateStoreProvider
import org.apache.spark.sql.statestore.table.TableMemory

/**
 * Watches how full the heap is after each garbage collection, and warns if state has a large part of it although it has given
 * way (`MemoryPressure`): an OutOfMemoryError in a task of the local master ends the JVM.
 *
 * Guarantees: one warning for each of `Shares` until the heap is half empty again.
 */
private[statestore] final class HeapWatch {
  import HeapWatch._

  private var warned = 0
  private var collections = 0

  /**
   * Returns a warning, if one is due.
   *
   * @param used   bytes of the heap in use after a garbage collection
   * @param heap   bytes that the heap may have
   * @param state  what the state of this JVM takes
   */
  def collected(used: Long, heap: Long, state: StateUse): Option[String] = synchronized {
    if (used < heap / 2) warned = 0
    val exceeded = Shares.count(share => used >= heap / 100 * share)
    collections = if (exceeded > warned && state.heapBytes >= heap / LeastPart) collections + 1 else 0
    if (collections < Sustained) {
      None
    } else {
      collections = 0
      warned = exceeded
      Some(warning(used, heap, state))
    }
  }

  private def warning(used: Long, heap: Long, state: StateUse): String = {
    val (process, setting) = if (state.isOnDriver) ("the driver", "spark.driver.memory") else ("this executor", "spark.executor.memory")
    s"the heap of $process is ${100 * used / heap} % full after garbage collection (${mib(used)} of ${mib(heap)} MiB), and the state " +
      s"of streaming queries takes ${mib(state.heapBytes)} MiB of it (stores: ${state.stores}, with ${state.rows} rows at their last commits), and " +
      s"${mib(state.mappedBytes)} MiB of mapped files. Of the heap, ${mib(state.heapLimit)} MiB are left for state at present. Rows beyond are " +
      "moved to files in spark.local.dir, unless that has no space or a running task uses them, and the index of the rows stays: " +
      "tasks may fail with an OutOfMemoryError, which ends the application on a local master. Committed batches stay intact. When the " +
      s"application starts, set $setting to more, such as ${2 * mib(heap)}m."
  }
}

/**
 * The memory of the state of all stores of a JVM.
 *
 * @param isOnDriver  true for a local master, whose tasks run in the driver
 */
private[statestore] final case class StateUse(
    heapBytes: Long, heapLimit: Long, mappedBytes: Long, rows: Long, stores: Long, isOnDriver: Boolean)

private[statestore] object HeapWatch extends Logging {
  // Of the heap, in percent. The heap of a JVM that is about to fail is not full: Spark allocates pages of up to 64 MiB and more.
  private val Shares = Seq(80, 90)

  // In less than this part of the heap, state is not what fills it.
  private final val LeastPart = 4

  // State gives way meanwhile, and what it leaves is garbage that the next few may not free.
  private final val Sustained = 6

  // Spark does not close the providers of an application that has ended.
  private val stores = new WeakHashMap[CheckpointStateStoreProvider, StoreUse]

  private lazy val started: Unit = {
    val watch = new HeapWatch
    val pools = ManagementFactory.getMemoryPoolMXBeans.asScala.filter(_.getType == MemoryType.HEAP).map(_.getName).toSet
    val listener: NotificationListener = (notification: Notification, _: AnyRef) =>
      try {
        if (notification.getType == GarbageCollectionNotificationInfo.GARBAGE_COLLECTION_NOTIFICATION) {
          val info = GarbageCollectionNotificationInfo.from(notification.getUserData.asInstanceOf[CompositeData])
          val used = info.getGcInfo.getMemoryUsageAfterGc.asScala.iterator.collect { case (pool, usage) if pools(pool) => usage.getUsed }
          val after = used.sum
          // ZGC reports its pauses, too, without a use.
          if (after > 0L) watch.collected(after, Runtime.getRuntime.maxMemory, use).foreach(logWarning(_))
        }
      } catch {
        case NonFatal(e) => logDebug("the heap was not checked", e)
      }
    ManagementFactory.getGarbageCollectorMXBeans.forEach {
      case emitter: NotificationEmitter => emitter.addNotificationListener(listener, null, null)
      case _ =>
    }
  }

  /** Starts the watch of this JVM's heap, once. */
  def start(): Unit = try started catch {
    case e @ (NonFatal(_) | _: LinkageError) => logDebug("this JVM does not report its garbage collections", e)
  }

  /** Records a commit of a store, which has so many rows. */
  def record(provider: CheckpointStateStoreProvider, rows: Long): Unit =
    stores.synchronized(stores.put(provider, new StoreUse(rows, System.nanoTime())))

  /** Removes a store that is closed. */
  def forget(provider: CheckpointStateStoreProvider): Unit = stores.synchronized(stores.remove(provider))

  /** Returns the stores that are not closed, the one with the oldest commit first. */
  def leastRecentlyUsed: Seq[CheckpointStateStoreProvider] =
    stores.synchronized(stores.asScala.toSeq).sortBy(_._2.nanos).map(_._1)

  private def use: StateUse = {
    val rows = stores.synchronized(stores.values.asScala.map(_.rows).sum)
    StateUse(
      TableMemory.heapBytes, TableMemory.heapLimit, TableMemory.mappedBytes, rows, StoreMetrics.openStores, CommitCollector.isLocal)
  }

  private def mib(bytes: Long): Long = bytes >> 20

  // The rows of a store's newest version, and when it was committed.
  private final class StoreUse(val rows: Long, val nanos: Long)
}
