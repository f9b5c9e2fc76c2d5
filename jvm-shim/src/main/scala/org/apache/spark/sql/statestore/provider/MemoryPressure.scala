package org.apache.spark.sql.statestore.provider

import java.lang.management.{ManagementFactory, MemoryType}
import java.util.concurrent.TimeUnit

import scala.jdk.CollectionConverters._

import org.apache.spark.SparkEnv
import org.apache.spark.internal.Logging
import org.apache.spark.sql.statestore.table.TableMemory
import org.apache.spark.util.ThreadUtils

/**
 * Has the state of this JVM give way to all else in its heap: the heap limit of the tables is at most `maxHeapBytes`, and what
 * Spark's cached tables, sorts and joins leave of the heap at present, and what all objects leave after garbage collections.
 *
 * Guarantees: beyond the limit, rows of the stores that no task uses leave the heap for mapped files, those of the oldest
 * commits first, within some tenths of a second; rows of the other stores follow as these allocate. A task that opens a store
 * waits while some of its pages, of 16 MiB or one larger row, are moved. The last 256 MiB of the disk are left to others.
 *
 * State is not registered as a consumer of unmanaged memory, which Spark has since 4.1: that makes the pool of execution memory
 * smaller, and a task that asks for its share then waits until another task frees memory, which may be never.
 */
private[statestore] object MemoryPressure extends Logging {
  private final val IntervalMillis = 100L

  // What Spark reserves for all that it does not count (`UnifiedMemoryManager`).
  private final val Reserved = 300L << 20

  // Of the heap, for the garbage collector: G1 keeps as much free by default (G1ReservePercent).
  private final val ReservedPart = 10

  // At least this part of the heap: an index in files is slow.
  private final val LeastPart = 8

  // Until rows are moved again after the disk had no space.
  private final val BackOffNanos = TimeUnit.SECONDS.toNanos(30)

  // The old generation, or the heap of a collector without generations: young collections leave its garbage, and are not counted.
  private lazy val old = ManagementFactory.getMemoryPoolMXBeans.asScala.find { pool =>
    pool.getType == MemoryType.HEAP && pool.isUsageThresholdSupported && pool.isCollectionUsageThresholdSupported
  }

  // Used by the thread alone.
  private var application: SparkEnv = _
  private var objects = new OtherObjects
  private var before = Long.MaxValue
  private var noSpaceUntil = System.nanoTime()
  private var hasWarned = false

  private lazy val started: Unit = {
    val timer = ThreadUtils.newDaemonSingleThreadScheduledExecutor("state-store-memory")
    timer.scheduleWithFixedDelay(() => relieve(), 0L, IntervalMillis, TimeUnit.MILLISECONDS)
  }

  /** Starts to watch the memory of this JVM, once. */
  def start(): Unit = started

  /** Returns the bytes of a heap that are left for state, if Spark's memory manager has given so much to tasks and blocks. */
  def availableBeside(spark: Long, heap: Long): Long = heap - math.max(Reserved, heap / ReservedPart) - spark

  private def relieve(): Unit = try {
    val env = SparkEnv.get
    if (env ne application) {
      application = env
      objects = new OtherObjects
      before = Long.MaxValue
    }
    if (env != null) {
      val manager = env.memoryManager
      val heap = Runtime.getRuntime.maxMemory
      val beside = availableBeside(manager.onHeapExecutionMemoryUsed + manager.onHeapStorageMemoryUsed, heap)
      old.map(_.getCollectionUsage).foreach(usage => objects.collected(usage.getUsed, TableMemory.heapBytes))
      val most = old.map(_.getUsage.getMax).filter(_ > 0L).getOrElse(heap)
      val now = math.max(heap / LeastPart, math.min(beside, objects.bytesLeft(most)))
      // What Spark uses for a moment is not worth a move.
      TableMemory.limitToAvailable(math.max(before, now))
      before = now
      if (isOverLimit && System.nanoTime() - noSpaceUntil >= 0L) moveIdle()
    }
  } catch {
    // A timer ends with the first exception.
    case e: Throwable => warn("the state of streaming queries was not moved out of the heap", e)
  }

  private def isOverLimit: Boolean = TableMemory.heapBytes > TableMemory.heapLimit

  private def moveIdle(): Unit = try {
    val stores = HeapWatch.leastRecentlyUsed.iterator
    while (isOverLimit && stores.hasNext) {
      val store = stores.next()
      while (isOverLimit && requireSpace() && store.moveToFiles()) {}
    }
  } catch {
    case e: java.io.IOException =>
      noSpaceUntil = System.nanoTime() + BackOffNanos
      warn("the state of streaming queries stays in the heap, as spark.local.dir has no space for it", e)
  }

  private def requireSpace(): Boolean =
    TableMemory.hasSpace || (throw new java.io.IOException("less than 256 MiB are left"))

  private def warn(problem: String, e: Throwable): Unit = if (!hasWarned) {
    hasWarned = true
    logWarning(s"$problem; this is logged once", e)
  }
}

/** Estimates how much of the heap is used by all but state, from its use after collections. */
private[statestore] final class OtherObjects {
  import OtherObjects._

  private var last = -1L

  // The heap of state at the last samples, the newest first: pages that were moved since may still be counted in `last`.
  private var states = List.empty[Long]

  /** Takes the bytes in use after the last collection, and those of state at present. */
  def collected(used: Long, state: Long): Unit = if (used > 0L && used != last) {
    last = used
    states = (state :: states).take(Samples)
  }

  /** Returns the bytes that are left for state if it must keep the heap from being nearly full. */
  def bytesLeft(most: Long): Long = if (states.isEmpty) Long.MaxValue else most / 100 * MostUsed - (last - states.max)
}

private object OtherObjects {
  // Of the heap, in percent.
  private final val MostUsed = 80

  private final val Samples = 2
}
