package org.apache.spark.sql.statestore.provider

import java.io.File
import java.util.concurrent.atomic.AtomicBoolean

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.statestore.backend.LocalCopyPlace
import org.apache.spark.sql.statestore.table.{CopiedFamily, LocalCopyFile}

/**
 * Writes local copies in the background, one at a time.
 *
 * Guarantees: a copy that cannot be written costs nothing else. The copies of a directory have at most `maxBytes`, those of
 * other processes included; of the others those that were not used for longest are removed. None is written that would leave a
 * disk nearly full.
 */
private[statestore] object LocalCopies extends Logging {
  private lazy val executor = org.apache.spark.util.ThreadUtils.newDaemonSingleThreadExecutor("state-store-local-copies")
  private val hasWarned = new AtomicBoolean

  // A disk keeps a tenth of its space, and so many bytes.
  private final val LeastSpace = 1L << 30

  // The smallest copy of a family has so many bytes.
  private final val LeastBytes = 256L << 10

  /**
   * Writes a copy later.
   *
   * @param maxBytes  most bytes of all copies in the directory
   * @param begin     called before the families are read; false if they must not be read any more
   * @param end       called when they are not read any more
   */
  def write(
      place: LocalCopyPlace, families: Seq[CopiedFamily], maxBytes: Long, begin: () => Boolean, end: () => Unit): Unit = submit { () =>
    try {
      if (begin() && makeRoom(place, families, maxBytes)) LocalCopyFile.write(place.path, place.streamId, families)
    } catch {
      case NonFatal(e) =>
        val message = s"the local copy ${place.path} could not be written; a restart then loads this state from the checkpoint"
        if (hasWarned.compareAndSet(false, true)) logWarning(message, e) else logDebug(message, e)
    } finally {
      end()
    }
  }

  private[statestore] def submit(task: Runnable): Unit = executor.execute(task)

  // Removes other copies if this one needs their room; false if there is not enough.
  private def makeRoom(place: LocalCopyPlace, families: Seq[CopiedFamily], maxBytes: Long): Boolean = {
    val directory = new File(place.path).getParentFile
    // Records, and an index of at most as many bytes.
    val needed = families.iterator.map(2 * _.content.liveBytes + LeastBytes).sum
    val fits = needed <= maxBytes && directory.getUsableSpace - needed > math.max(LeastSpace, directory.getTotalSpace / 10)
    if (fits) {
      val files = filesIn(directory.getParentFile).flatMap(filesIn).filter(_.isFile)
      var total = files.iterator.map(_.length).sum
      files.sortBy(_.lastModified).iterator.takeWhile(_ => total + needed > maxBytes).foreach { file =>
        val size = file.length
        if (file.delete()) total -= size
      }
    }
    fits
  }

  private def filesIn(directory: File): Seq[File] = Option(directory.listFiles).fold(Seq.empty[File])(_.toSeq)
}
