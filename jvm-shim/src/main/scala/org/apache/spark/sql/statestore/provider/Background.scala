package org.apache.spark.sql.statestore.provider

/** Thread pool of background work, shared by all stores of this JVM. */
private[statestore] object Background {
  private lazy val executor = org.apache.spark.util.ThreadUtils.newDaemonFixedThreadPool(
    math.max(1, Runtime.getRuntime.availableProcessors() / 4), "state-store-background")

  def submit(task: () => Unit): Unit = executor.execute(() => task())
}
