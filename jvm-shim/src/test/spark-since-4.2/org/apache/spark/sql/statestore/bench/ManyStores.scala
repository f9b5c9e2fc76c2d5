package org.apache.spark.sql.statestore.bench

import java.util.{Map => JMap}
import java.util.concurrent.{Callable, CyclicBarrier, Executors}

import scala.jdk.CollectionConverters._

/**
 * Many stores of one operator on one executor, one per partition. Times are in nanoseconds, from the
 * common start of all threads to the end of the last one.
 */
class ManyStores(
    providerClass: String, checkpointRoot: String, confs: JMap[String, String], count: Int) {

  import ManyStores._

  private val stores =
    Array.tabulate(count)(new StoreBenchmark(providerClass, checkpointRoot, confs, _))

  /** Every store's first batch. */
  def fill(keys: Int): Unit = stores.foreach(_.fill(keys))

  /** Changes so many rows in every store; `commit` is to follow. */
  def change(rows: Int, seed: Long): Unit = stores.foreach(_.change(rows, seed))

  /** Commits every store, so many at a time. */
  def commit(threads: Int): Long = runConcurrently(threads) { thread =>
    var i = thread
    while (i < stores.length) {
      stores(i).commit()
      i += threads
    }
  }

  /** Loads as many stores anew as there are threads, in the place of what is in memory, and compares a part of each. */
  def reloadConcurrently(threads: Int): Long = runConcurrently(threads)(stores(_).reload())

  def metrics: java.util.List[String] = stores.map(_.metrics).toSeq.asJava

  def close(): Unit = stores.foreach(_.close())
}

private[bench] object ManyStores {
  // As in an executor, threads stay for the next task.
  private val pool = Executors.newCachedThreadPool { task =>
    val thread = new Thread(task)
    thread.setDaemon(true)
    thread
  }

  /** Returns the nanoseconds until the last of so many threads, started together, has ended. */
  def runConcurrently(threads: Int)(body: Int => Unit): Long = {
    var start = 0L
    val barrier = new CyclicBarrier(threads, () => start = System.nanoTime())
    val tasks = (0 until threads).map { thread =>
      pool.submit(new Callable[Long] {
        override def call(): Long = {
          barrier.await()
          body(thread)
          System.nanoTime()
        }
      })
    }
    tasks.map(_.get()).max - start
  }
}
