package org.apache.spark.sql.statestore.provider

import java.util.concurrent.TimeUnit

import scala.util.control.NonFatal

import org.apache.spark.SparkEnv
import org.apache.spark.internal.Logging
import org.apache.spark.sql.statestore.table.TableMemory
import org.apache.spark.util.ThreadUtils

/**
 * Has the state of this JVM give way to all else in its heap: the heap limit of the tables is at most `maxHeapBytes`, and what
 * Spark's cached tables, sorts and joins leave of the heap at present, and what all objects leave after garbage collections.
 *
 * Guarantees: beyond the limit, rows of the stores that no task uses leave the heap for mapped files, those of the oldest
 * commits first, within a tenth of a second; rows of the other stores follow as these allocate. Nothing waits for it.
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

  // Of the heap, in percent: state gives way beyond it.
  private final val MostUsed = 80

  // Old garbage may survive a collection or two.
  private final val Collections = 3

  // After each of the last collections: the heap in use, and that of state, which is still in use if its rows were moved since.
  private var collections = List.empty[(Long, Long)]

  @volatile private var leftByOthers = Long.MaxValue

  private lazy val started: Unit = {
    val timer = ThreadUtils.newDaemonSingleThreadScheduledExecutor("state-store-memory")
    timer.scheduleWithFixedDelay(() => relieve(), 0L, IntervalMillis, TimeUnit.MILLISECONDS)
  }

  /** Starts to watch Spark's memory, once. */
  def start(): Unit = started

  /** Returns the bytes of a heap that are left for state, if Spark's memory manager has given so much to tasks and blocks. */
  def availableBeside(spark: Long, heap: Long): Long =
    heap - math.max(Reserved, heap / ReservedPart) - spark

  /** Takes the bytes of the heap that are in use after a garbage collection. */
  def collected(used: Long): Unit = synchronized {
    collections = ((used, TableMemory.heapBytes) :: collections).take(Collections)
    if (collections.length == Collections) {
      val others = collections.map(_._1).min - collections.map(_._2).max
      leftByOthers = Runtime.getRuntime.maxMemory / 100 * MostUsed - others
    }
  }

  private def relieve(): Unit = try {
    val env = SparkEnv.get
    if (env != null) {
      val manager = env.memoryManager
      val spark = manager.onHeapExecutionMemoryUsed + manager.onHeapStorageMemoryUsed
      val heap = Runtime.getRuntime.maxMemory
      TableMemory.limitToAvailable(math.max(heap / LeastPart, math.min(availableBeside(spark, heap), leftByOthers)))
      if (isOverLimit) moveIdle(spark)
    }
  } catch {
    case e @ (NonFatal(_) | _: OutOfMemoryError) => logDebug("the memory of state was not limited", e)
  }

  private def isOverLimit: Boolean = TableMemory.heapBytes > TableMemory.heapLimit

  private def moveIdle(spark: Long): Unit = {
    val before = TableMemory.heapBytes
    val stores = HeapWatch.leastRecentlyUsed.iterator
    while (isOverLimit && stores.hasNext) {
      val store = stores.next()
      while (isOverLimit && store.moveToFiles()) {}
    }
    logDebug(s"moved ${before - TableMemory.heapBytes} bytes of state to files: Spark uses $spark bytes of the heap")
  }
}
