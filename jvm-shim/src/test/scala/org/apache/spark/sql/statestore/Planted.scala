package org.apache.spark.sql.statestore

import java.util.concurrent.atomic.AtomicLong

/** A class that a checkpoint may name; making an object of it shows. */
class Planted {
  Planted.made.incrementAndGet()
}

/** Counts them, for tests in Python. */
object Planted {
  val made = new AtomicLong

  def count: Long = made.get
}
