package org.apache.spark.sql.statestore.bench

import java.lang.management.{BufferPoolMXBean, ManagementFactory}

import scala.jdk.CollectionConverters._

/** Measurement of the JVM's memory. */
object Machine {

  /** Bytes of the heap that are reachable, and of buffers outside of it. */
  def usedMemory(): Array[Long] = {
    var last = Long.MaxValue
    var used = Long.MaxValue - 1
    var collections = 0
    // Memory that cleaners refer to is freed by a later collection.
    while (collections < 4 || used < last - (last >> 8) && collections < 12) {
      System.gc()
      Thread.sleep(100)
      last = used
      used = ManagementFactory.getMemoryMXBean.getHeapMemoryUsage.getUsed
      collections += 1
    }
    val buffers = ManagementFactory.getPlatformMXBeans(classOf[BufferPoolMXBean]).asScala.map(_.getMemoryUsed)
    Array(used, buffers.sum)
  }
}
