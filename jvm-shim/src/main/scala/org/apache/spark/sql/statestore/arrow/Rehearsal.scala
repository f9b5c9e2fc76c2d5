package org.apache.spark.sql.statestore.arrow

import java.nio.ByteBuffer
import java.util
import java.util.concurrent.atomic.AtomicBoolean

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.statestore.table.StateTable

/**
 * The code of commits and loads, run once on tables of its own: its classes and native libraries are loaded while Spark plans the
 * first batch, and not within it.
 *
 * Guarantees: it changes nothing that anything else uses.
 */
private[statestore] object Rehearsal extends Logging {
  // Enough that the batch is compressed.
  private val Rows = 128

  private val hasRun = new AtomicBoolean

  /** Runs once in this JVM; a failure shows where the code is needed. */
  def run(): Unit = if (hasRun.compareAndSet(false, true)) {
    try commitAndLoad() catch {
      // A missing native library is a LinkageError, and one that is not caught ends an executor.
      case e @ (NonFatal(_) | _: LinkageError) => logDebug("the state store did not rehearse a commit and a load", e)
    }
  }

  private def commitAndLoad(): Unit = {
    val committed, loaded = new StateTable(1, 1)
    try {
      val row = new UnsafeRow(1)
      row.pointTo(new Array[Byte](16), 16)
      for (i <- 0 until Rows) {
        row.setLong(0, i)
        committed.put(row, row)
      }
      val view = committed.snapshot().view
      val batch = new ChangeBatches(() => committed.scan(view), RecordSelection.Live, compressed = true).next()
      try new LoadedChanges(Seq(loaded), newestFirst = true).load(new OneMessage(batch), isLarge = true) finally batch.close()
    } finally {
      committed.discard()
      loaded.discard()
    }
  }

  private final class OneMessage(batch: ChangeBatch) extends MessageSource {
    private var isRead = false

    override def next(into: StoredMessage): Boolean = !isRead && {
      isRead = true
      val parts = new util.ArrayList[ByteBuffer]
      batch.addTo(parts)
      val room = into.room(batch.messageBytes).nioBuffer(0L, batch.messageBytes.toInt)
      parts.forEach(room.put(_))
      into.decode(batch.messageBytes)
      true
    }
  }
}
