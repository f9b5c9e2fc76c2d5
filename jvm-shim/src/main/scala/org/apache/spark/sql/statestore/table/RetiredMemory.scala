package org.apache.spark.sql.statestore.table

import java.lang.ref.Cleaner
import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicInteger
import java.util.concurrent.locks.LockSupport

/**
 * The memory that one store's tables no longer use, with the leases of those that may still read it. It is unmapped
 * once no lease is open.
 *
 * Guarantees: memory stays mapped until every lease that was open when it was retired has ended. A lease is
 * acquired only while the store's tables are in use, before they are retired.
 */
private[statestore] final class RetiredMemory {
  private var leases = 0
  private var retired = List.empty[TableMemory]
  private var retireUnused: () => Iterable[TableMemory] = _

  /** Opens a lease that `release` ends. */
  def acquire(): Unit = synchronized(leases += 1)

  def release(): Unit = synchronized {
    leases -= 1
    unmapIfQuiescent()
  }

  /** Unmaps memory that no table uses any more as soon as no lease is open. */
  def retire(memory: Iterable[TableMemory]): Unit = synchronized {
    retired = retired ++ memory
    unmapIfQuiescent()
  }

  /** Unmaps the memory that a function returns once no lease is open, unless `cancelRetirement` is called before. */
  def retireOnceUnused(memory: () => Iterable[TableMemory]): Unit = synchronized {
    retireUnused = memory
    unmapIfQuiescent()
  }

  /** Undoes `retireOnceUnused`; to be called while a lease is open. */
  def cancelRetirement(): Unit = synchronized { retireUnused = null }

  /** Opens the lease of a store that the calling thread opens. */
  def newLease(): ReadLease = {
    acquire()
    new ReadLease(this)
  }

  private def unmapIfQuiescent(): Unit = if (leases == 0) {
    if (retireUnused != null) {
      retired = retired ++ retireUnused()
      retireUnused = null
    }
    retired.foreach(_.close())
    retired = Nil
  }
}

/**
 * Lease of an open store and its iterators on mapped memory. Each operation on tables runs between `enter` and
 * `exit`.
 *
 * Guarantees: after `close`, `enter` fails. The lease ends, and memory may be unmapped, when it was closed by
 * the thread that opened it and no other thread is between `enter` and `exit`. Otherwise it ends when the
 * garbage collector finds it unreachable: the opening thread may be inside an operation when another one closes
 * the lease. That thread needs no atomic operation per row, as it cannot close the lease meanwhile.
 */
private[statestore] final class ReadLease private[table] (retiredMemory: RetiredMemory) {
  private val owner = Thread.currentThread

  // Operations of other threads: Spark's state server for Python, or the writer thread of a piped RDD.
  private val pins = new AtomicInteger
  @volatile private var closed = false
  @volatile private var closedByOwner = false

  // Runs once: when the lease ends, or when it is unreachable.
  private val end = ReadLease.endOf(this, retiredMemory)

  /** Begins an operation; returns whether it is one of another thread, for `exit`. */
  def enter(): Boolean = {
    val pinned = Thread.currentThread ne owner
    // Incremented before `closed` is read: `close` writes and reads in the opposite order, so one sees the other.
    if (pinned) pins.incrementAndGet()
    if (closed) {
      exit(pinned)
      refuse()
    }
    pinned
  }

  /** True if the calling thread opened the lease: its operations need no `exit`. Fails like `enter`. */
  def isOwner: Boolean = {
    if (closed) refuse()
    Thread.currentThread eq owner
  }

  /** Ends an operation. */
  def exit(pinned: Boolean): Unit = if (pinned) {
    pins.decrementAndGet()
    if (closedByOwner) endIfUnused()
  }

  /** Waits until no thread but the calling one is inside an operation; false if one is after ten seconds. */
  def awaitOthers(): Boolean = {
    val own = if (Thread.currentThread eq owner) 0 else 1
    val end = System.nanoTime() + TimeUnit.SECONDS.toNanos(10)
    while (pins.get > own && System.nanoTime() - end < 0L) LockSupport.parkNanos(100000L)
    pins.get <= own
  }

  /** Refuses further operations. Idempotent. */
  def close(): Unit = {
    closed = true
    if (Thread.currentThread eq owner) {
      closedByOwner = true
      endIfUnused()
    }
  }

  private def refuse(): Nothing =
    throw new IllegalStateException("the task of this state store has ended: its stores and iterators are closed")

  // Called once `closed` is set: operations that begin later see it, so no pin now means none inside ever after.
  private def endIfUnused(): Unit = if (pins.get == 0) end.clean()
}

private object ReadLease {
  private val cleaner = Cleaner.create()

  // Must not capture the lease, or it would never be unreachable.
  private def endOf(lease: ReadLease, retiredMemory: RetiredMemory): Cleaner.Cleanable =
    cleaner.register(lease, () => retiredMemory.release())
}
