package org.apache.spark.sql.statestore

import java.util.concurrent.atomic.AtomicLong

/** Class that a damaged checkpoint names; counts its instances. */
class Planted {
  Planted.instances.incrementAndGet()
}

/** The number of instances, for tests in Python. */
object Planted {
  val instances = new AtomicLong

  def count: Long = instances.get
}
