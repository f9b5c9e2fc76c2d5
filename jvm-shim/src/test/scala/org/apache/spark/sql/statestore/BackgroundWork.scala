package org.apache.spark.sql.statestore

import java.util.concurrent.{CountDownLatch, CyclicBarrier}

import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.statestore.provider.{Background, HeapWatch, LocalCopies}

/** Background work of the providers of this JVM, for tests and benchmarks to await. */
private[statestore] object BackgroundWork {

  /** Waits until all that was submitted before has ended, local copies included. */
  def await(): Unit = {
    awaitUploads()
    val copied = new CountDownLatch(1)
    LocalCopies.submit(() => copied.countDown())
    copied.await()
  }

  /** Waits for uploads and compactions that were submitted before. */
  def awaitUploads(): Unit = synchronized {
    val barrier = new CyclicBarrier(Background.threads + 1)
    (1 to Background.threads).foreach(_ => Background.submit(() => barrier.await()))
    barrier.await()
  }

  /** Closes the stores of this JVM, which no task may use: beyond the heap limit their rows would be moved at any time. */
  def closeStores(): Unit = {
    StateStore.stop()
    await()
    HeapWatch.leastRecentlyUsed.foreach(_.close())
  }

  /** Has local copies wait until the latch that it returns is counted down. */
  def holdCopies(): CountDownLatch = {
    val released = new CountDownLatch(1)
    LocalCopies.submit(() => released.await())
    released
  }
}
