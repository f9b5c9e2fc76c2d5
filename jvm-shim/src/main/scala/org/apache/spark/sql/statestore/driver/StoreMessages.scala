package org.apache.spark.sql.statestore.driver

import org.apache.spark.sql.statestore.provider.StoreKind

/** A message of an executor to the driver about its stores. Answers are as those of `DriverMessage`. */
private[statestore] sealed trait StoreMessage extends Product with Serializable {
  def answer(): Any
}

/** Asks whether the commit log of a run's query publishes what is handed over; if so, it does for the run from now on. */
private[statestore] final case class FindBarrier(log: String, run: String) extends StoreMessage {
  override def answer(): Any = HandedOverCommits.begin(log, run)
}

/** Hands a commit over; false if the run has ended. */
private[statestore] final case class HandOver(log: String, run: String, commit: HandedOverCommit) extends StoreMessage {
  override def answer(): Any = HandedOverCommits.take(log, run, commit)
}

/** An executor has discarded logical files, by their paths below the query's state directory. */
private[statestore] final case class VersionsDiscarded(log: String, run: String, paths: Array[String])
  extends StoreMessage {
  override def answer(): Any = {
    HandedOverCommits.discarded(log, run, paths)
    null
  }
}

/** An executor has opened the first store of a kind. */
private[statestore] final case class StoresOpened(kind: StoreKind) extends StoreMessage {
  override def answer(): Any = {
    Rebalancer.opened(kind)
    null
  }
}

/**
 * A commit that an executor has handed over.
 *
 * @param path      of its metadata, below the query's state directory
 * @param store     the store, as requests to the backend name it
 * @param metadata  its metadata for the driver to publish; null if the executor has published it
 */
private[statestore] final case class HandedOverCommit(
    attemptId: String, version: Long, path: String, store: String, metadata: Array[Byte])
