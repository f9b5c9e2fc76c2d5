package org.apache.spark.sql.statestore

import java.nio.file.{FileAlreadyExistsException, Files, Path}
import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.TaskContext

/**
 * Fault injection in tasks of a streaming query, in the middle of their rows, each fault once per batch and
 * partition.
 *
 * A query calls it for each output row of its stateful operator with SQL's `reflect`: in the thread that
 * drives the store and before the store commits. It records its faults as files in a directory.
 */
object TaskFaults {
  private val Row = 3
  private val rowsByTask = new ConcurrentHashMap[Long, Int]

  /**
   * Counts a row, and at the third injects the faults of this batch, as in `0=raise+after,3=twice`: the
   * first that was not injected yet.
   *
   *  - `raise`: fail.
   *  - `after`: fail when the store has committed.
   *  - `kill`: wait to be killed by the driver, which finds the attempt's id in a file `kill-<id>`.
   *  - `lose`: wait for the executor's end, which the driver brings about, or for a file `lost`.
   *  - `twice`: wait until another attempt has committed, then continue, before that attempt has ended. Files
   *    `-both` and `-overtaken` record whether both have committed, or this one could not, as its provider was
   *    closed meanwhile.
   */
  def strike(directory: String, faults: String): String = {
    val context = TaskContext.get()
    if (context != null && rowsByTask.merge(context.taskAttemptId(), 1, Integer.sum(_, _)) == Row) {
      val batch = context.getLocalProperty("streaming.sql.batchId")
      faults.split(',').map(_.split('=')).filter(_(0) == batch).flatMap(_(1).split('+')).find { fault =>
        inject(fault, Path.of(directory, s"$batch-$fault-${context.partitionId()}"), context)
      }
    }
    ""
  }

  private def inject(fault: String, place: Path, context: TaskContext): Boolean = {
    val first = mark(place)
    fault match {
      case "raise" if first => fail()
      case "after" if first => context.addTaskCompletionListener[Unit](_ => fail())
      case "kill" if first =>
        mark(place.resolveSibling(s"kill-${context.taskAttemptId()}"))
        Thread.sleep(60000)
      case "lose" if first => await(place.resolveSibling("lost"))
      case "twice" =>
        val otherAttempt = place.resolveSibling(s"${place.getFileName}-other")
        val ends = Seq("both", "overtaken").map(end => place.resolveSibling(s"${place.getFileName}-$end"))
        if (first) {
          context.addTaskCompletionListener[Unit](_ => mark(ends(if (context.isFailed()) 1 else 0)))
          await(otherAttempt)
        } else {
          context.addTaskCompletionListener[Unit] { _ =>
            mark(otherAttempt)
            await(ends: _*)
          }
        }
      case _ =>
    }
    first
  }

  private def mark(place: Path): Boolean =
    try {
      Files.createFile(place)
      true
    } catch { case _: FileAlreadyExistsException => false }

  private def await(places: Path*): Unit = {
    val end = System.nanoTime() + 60000000000L
    while (!places.exists(Files.exists(_)) && System.nanoTime() < end) Thread.sleep(10)
  }

  private def fail(): Unit = throw new IllegalStateException("this task fails once")
}
