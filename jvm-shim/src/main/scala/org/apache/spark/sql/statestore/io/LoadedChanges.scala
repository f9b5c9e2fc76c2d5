package org.apache.spark.sql.statestore.io

import java.util.concurrent.ArrayBlockingQueue

import org.apache.spark.sql.statestore.table.{StateTable, TableLoad}

/**
 * Fills the empty tables of a version's states with its changes.
 *
 * Guarantees: messages are read and decompressed beside the insertion of those before them, in bounded
 * memory. When `all` returns, every change is in its table and known to be what was written; when it
 * fails, nothing runs on, and the tables are of no use.
 *
 * @param newestFirst  whether streams come with the newest first
 */
private[io] final class LoadedChanges(tables: Seq[StateTable], newestFirst: Boolean) {
  import LoadedChanges._

  if (newestFirst && tables.exists(_.hasLists)) {
    throw new UnreadableChangesException("the newest first, where a key may have several values")
  }

  private val states = tables.toArray
  private val loads = if (newestFirst) states.map(new TableLoad(_)) else Array.empty[TableLoad]
  private var stream = 0

  /** Takes all messages; with `isLarge`, another thread reads them. */
  def all(source: MessageSource, isLarge: Boolean): Unit = {
    if (isLarge) besides(source) else here(source)
    loads.foreach(load => requireSound(load.finish()))
  }

  private def here(source: MessageSource): Unit = {
    val message = new StoredMessage
    try {
      while (next(source, message)) take(message)
    } finally {
      message.close()
    }
  }

  private def besides(source: MessageSource): Unit = {
    val messages = Seq.fill(Waiting)(new StoredMessage)
    val empty = new ArrayBlockingQueue[StoredMessage](Waiting)
    val full = new ArrayBlockingQueue[Read](Waiting + 1)
    messages.foreach(empty.add)
    val reader = new Thread(() => full.add(readAll(source, empty, full)), "state-store-load")
    reader.setDaemon(true)
    reader.start()
    try {
      var read = full.take()
      while (!read.isLast) {
        take(read.message)
        empty.add(read.message)
        read = full.take()
      }
      if (read.failure != null) throw read.failure
    } finally {
      reader.interrupt()
      joinAll(reader)
      messages.foreach(_.close())
    }
  }

  // Runs on the reader's thread. What it gives back is the last that it says.
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
    val found = source.next(message)
    if (found && newestFirst) message.columns.hashKeys()
    found
  }

  private def take(message: StoredMessage): Unit = {
    if (message.state >= states.length) {
      throw new UnreadableChangesException(s"changes of state ${message.state} of ${states.length}")
    }
    try apply(message) catch {
      // Such as a row that no table takes; what its checksum says of it is not known yet.
      case e: RuntimeException => throw new UnreadableChangesException(e.toString, e)
    }
  }

  private def apply(message: StoredMessage): Unit = {
    val columns = message.columns
    if (!newestFirst) {
      val table = states(message.state)
      if (columns.hasAppends && !table.hasLists) {
        throw new UnreadableChangesException("a further value where a key has one")
      }
      columns.applyTo(table)
    } else {
      if (message.stream != stream) {
        stream = message.stream
        loads.foreach(load => requireSound(load.nextStream()))
      }
      requireSound(loads(message.state).take(columns))
    }
  }

  private def requireSound(sound: Boolean): Unit =
    if (!sound) throw new UnreadableChangesException("a key that one stream changes twice")
}

private[io] object LoadedChanges {
  // Messages that are read ahead, each of a few MiB.
  private final val Waiting = 3

  private final class Read(val message: StoredMessage, val isLast: Boolean, val failure: Throwable)

  // Its memory is freed next, so it must have ended, also when this thread is interrupted.
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
