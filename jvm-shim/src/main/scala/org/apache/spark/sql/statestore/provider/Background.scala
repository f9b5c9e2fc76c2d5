package org.apache.spark.sql.statestore.provider

/** Thread pool of background work, shared by all stores of this JVM. */
private[statestore] object Background {
  private[statestore] val threads: Int = math.max(1, Runtime.getRuntime.availableProcessors() / 4)

  private lazy val executor =
    org.apache.spark.util.ThreadUtils.newDaemonFixedThreadPool(threads, "state-store-background")

  def submit(task: () => Unit): Unit = executor.execute(() => task())
}
