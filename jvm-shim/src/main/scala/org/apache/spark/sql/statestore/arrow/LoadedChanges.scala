package org.apache.spark.sql.statestore.arrow

import java.util.concurrent.ArrayBlockingQueue

import org.apache.spark.sql.statestore.table.{RowPrefetch, StateTable, TableLoad}

/**
 * Applies the changes of a version to the tables of its column families, which are empty or have the rows of a local copy.
 *
 * Guarantees: messages are read and decompressed in parallel to the insertion of earlier ones, in
 * bounded memory. When `load` returns, every change is applied and verified; when it fails, its reader
 * thread has ended and the tables must be discarded.
 *
 * @param newestFirst  whether streams arrive newest first
 * @param atBase       called when the tables have the rows of the first stream, which is a full snapshot of empty tables; null
 *                     if there is no need. Streams then arrive oldest first
 */
private[statestore] final class LoadedChanges(
    tables: Seq[StateTable], newestFirst: Boolean, atBase: () => Unit = null) {
  import LoadedChanges._

  if (newestFirst && tables.exists(_.hasLists)) {
    throw new UnreadableChangesException("streams arrive newest first, but a column family has several values per key")
  }

  private val targets = tables.toArray
  // Of each table, null if changes are applied to it in the order in which they were made.
  private val loads = targets.map(table => if (newestFirst || atBase != null && !table.hasLists) new TableLoad(table) else null)
  private val prefetches = targets.map(new RowPrefetch(_))
  private var stream = 0
  private var hasBase = false

  /** Applies all messages; with `isLarge`, another thread reads them. */
  def load(source: MessageSource, isLarge: Boolean): Unit =
    try {
      if (isLarge) loadWithReader(source) else loadInline(source)
      if (atBase != null && !hasBase) endBase()
      loads.foreach(load => if (load != null) requireSound(load.finish()))
    } finally {
      loads.foreach(load => if (load != null) load.close())
    }

  private def loadInline(source: MessageSource): Unit = {
    val message = new StoredMessage
    try {
      while (next(source, message)) take(message)
    } finally {
      message.close()
    }
  }

  private def loadWithReader(source: MessageSource): Unit = {
    val messages = Seq.fill(Waiting)(new StoredMessage)
    val empty = new ArrayBlockingQueue[StoredMessage](Waiting)
    val full = new ArrayBlockingQueue[Read](Waiting + 1)
    messages.foreach(empty.add)
    val reader = new Thread(() => full.add(readAll(source, empty, full)), "state-store-load")
    reader.setDaemon(true)
    reader.start()
    try {
      var entry = full.take()
      while (!entry.isLast) {
        take(entry.message)
        empty.add(entry.message)
        entry = full.take()
      }
      if (entry.failure != null) throw entry.failure
    } finally {
      reader.interrupt()
      joinAll(reader)
      messages.foreach(_.close())
    }
  }

  // Runs on the reader's thread; returns the last element of the queue.
  private def readAll(
      source: MessageSource, empty: ArrayBlockingQueue[StoredMessage], full: ArrayBlockingQueue[Read]): Read =
    try {
      var message = empty.take()
      while (next(source, message)) {
        full.add(new Read(message, isLast = false, null))
        message = empty.take()
      }
      new Read(null, isLast = true, null)
    } catch {
      case e: Throwable => new Read(null, isLast = true, e)
    }

  private def next(source: MessageSource, message: StoredMessage): Boolean = {
    val hasMessage = source.next(message)
    if (hasMessage && message.columnFamily < targets.length) {
      message.columns.hashKeys(targets(message.columnFamily).keyHash)
    }
    hasMessage
  }

  private def take(message: StoredMessage): Unit = {
    if (message.columnFamily >= targets.length) {
      throw new UnreadableChangesException(s"changes of column family ${message.columnFamily} of ${targets.length}")
    }
    try apply(message) catch {
      // The checksum is not verified yet: damaged bytes may fail in the table first.
      case e: RuntimeException => throw new UnreadableChangesException(e.toString, e)
    }
  }

  private def apply(message: StoredMessage): Unit = {
    val columns = message.columns
    if (message.stream != stream) {
      stream = message.stream
      if (newestFirst) loads.foreach(load => requireSound(load.nextStream()))
      else if (atBase != null && !hasBase) endBase()
    }
    val load = loads(message.columnFamily)
    if (load == null) {
      val table = targets(message.columnFamily)
      if (columns.hasMerges && !table.hasLists) {
        throw new UnreadableChangesException("a merge into a column family with one value per key")
      }
      applyInOrder(columns, table, prefetches(message.columnFamily))
    } else {
      requireSound(load.take(columns))
    }
  }

  private def applyInOrder(columns: ChangeColumns, table: StateTable, prefetch: RowPrefetch): Unit = {
    var from = 0
    while (from < columns.rows) {
      val until = prefetch.next(columns, from)
      columns.applyTo(table, from, until)
      from = until
    }
  }

  private def endBase(): Unit = {
    hasBase = true
    loads.indices.foreach { i =>
      if (loads(i) != null) {
        requireSound(loads(i).finish())
        loads(i).close()
      }
      loads(i) = null
    }
    atBase()
  }

  private def requireSound(sound: Boolean): Unit =
    if (!sound) throw new UnreadableChangesException("a stream changes a key twice")
}

private[statestore] object LoadedChanges {
  // Messages that are read ahead, a few MiB each.
  private final val Waiting = 3

  private final class Read(val message: StoredMessage, val isLast: Boolean, val failure: Throwable)

  // The caller frees its memory next, so the thread must have ended, even if this one is interrupted.
  private def joinAll(reader: Thread): Unit = {
    var interrupted = false
    while (reader.isAlive) {
      try reader.join() catch {
        case _: InterruptedException => interrupted = true
      }
    }
    if (interrupted) Thread.currentThread.interrupt()
  }
}
