package org.apache.spark.sql.statestore.driver

import scala.collection.mutable

import org.apache.hadoop.fs.Path

import org.apache.spark.sql.statestore.backend.FileClient

/**
 * The files of a log's batches, named by their numbers. Spark asks whether a file exists before it creates it,
 * reads it back, and removes an old one in each batch; what follows from the log's own calls needs no request.
 *
 * Guarantees: an answer without a request is about the batch that this log created last, which nobody changes,
 * and about the next one, whose creation is exclusive: if another query was faster, creating it is an error.
 * Removals of batches may wait for others; Spark removes what it finds to be old when a query starts.
 */
private[statestore] final class LogBatches(files: FileClient, directory: Path, isLocal: Boolean) {
  import LogBatches._

  private val isLog = Logs(directory.getName) || directory.getParent != null && directory.getParent.getName == "sources"
  private val removed = mutable.LinkedHashSet.empty[String]
  private var newest: Option[(Path, Long)] = None
  private var content: Option[Array[Byte]] = None

  /** True for the file of a batch, which is no directory: on object stores the search for one is a listing. */
  def isBatch(path: Path): Boolean = numberOf(path).isDefined

  /** Remembers a file as the newest one, if it is a batch's. */
  def created(path: Path, written: FileContent): Unit = synchronized {
    numberOf(path).foreach { number =>
      newest = Some((path, number))
      content = written.ifSmall(RememberedBytes)
      removed -= path.getName
    }
  }

  /** Returns whether a file exists, if that is known. */
  def exists(path: Path): Option[Boolean] = synchronized {
    for ((created, last) <- newest; number <- numberOf(path) if path == created || number == last + 1)
      yield path == created
  }

  /** Returns the content of a file, if it is known. */
  def contentOf(path: Path): Option[Array[Byte]] = synchronized {
    if (newest.exists(_._1 == path)) content else None
  }

  /** Removes the file of a batch, now or with others. */
  def delete(path: Path): Unit = synchronized {
    val mayWait = !isLocal && newest.exists { case (_, last) => numberOf(path).exists(_ < last) }
    removed += path.getName
    if (!mayWait) {
      newest = None
      content = None
    }
    if (!mayWait || removed.size >= RemovedTogether) {
      files.deleteFiles(directory, removed)
      removed.clear()
    }
  }

  private def numberOf(path: Path): Option[Long] =
    if (isLog && path.getParent == directory) path.getName.stripSuffix(Compacted).toLongOption else None
}

private object LogBatches {
  private val Logs = Set("offsets", "commits", "_spark_metadata")
  private val Compacted = ".compact"
  // Larger contents, of compacted batches, are read again.
  private final val RememberedBytes = 1 << 20
  private final val RemovedTogether = 10
}
