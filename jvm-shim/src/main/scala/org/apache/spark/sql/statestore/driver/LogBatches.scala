package org.apache.spark.sql.statestore.driver

import scala.collection.mutable

import org.apache.hadoop.fs.{FileStatus, Path}

import org.apache.spark.sql.statestore.backend.FileClient
import org.apache.spark.sql.statestore.provider.StoreLocation

/**
 * The files of a log's batches, named by their numbers. Spark asks whether a file exists before it creates it,
 * reads files back, the last ten of them to compact a source's log, lists that log, and removes an old file in
 * each batch; what follows from the log's own calls needs no request.
 *
 * Guarantees: an answer without a request is about batches that this log created, which do not change, and
 * about the next one, whose creation is exclusive: if another query was faster, creating it is an error.
 * Removals of batches may wait for others; Spark removes what it finds to be old when a query starts.
 */
private[statestore] final class LogBatches(files: FileClient, directory: Path, isLocal: Boolean) {
  import LogBatches._

  private val isLog = Logs(directory.getName) || directory.getParent != null && directory.getParent.getName == "sources"
  private val removed = mutable.LinkedHashSet.empty[String]
  private var newest: Option[(Path, Long)] = None
  // From the oldest one.
  private val contents = mutable.LinkedHashMap.empty[Path, Array[Byte]]
  private var contentBytes = 0
  // All of the log's files, since it was listed.
  private var listing: Option[mutable.Map[Path, FileStatus]] = None

  /** True for the file of a batch, which is no directory: on object stores the search for one is a listing. */
  def isBatch(path: Path): Boolean = numberOf(path).isDefined

  /** Remembers a file as the newest one, if it is a batch's. */
  def created(path: Path, content: FileContent): Unit = synchronized {
    numberOf(path) match {
      case None => listing = None
      case Some(number) =>
        if (newest.forall { case (_, last) => last <= number }) newest = Some((path, number))
        forget(path)
        content.ifSmall(RememberedBytes).foreach { bytes =>
          contents(path) = bytes
          contentBytes += bytes.length
        }
        while (contentBytes > RememberedBytes) forget(contents.head._1)
        listing.foreach(_(path) = new FileStatus(content.size, false, 1, 0L, System.currentTimeMillis, path))
        removed -= path.getName
    }
  }

  /** Returns whether a file exists, if that is known. */
  def exists(path: Path): Option[Boolean] = synchronized {
    newest.flatMap { case (created, last) =>
      if (path == created || contents.contains(path)) Some(true)
      else if (numberOf(path).contains(last + 1)) Some(false)
      else None
    }
  }

  /** Returns the content of a file, if it is known. */
  def contentOf(path: Path): Option[Array[Byte]] = synchronized(contents.get(path))

  /** Lists the files of the directory. */
  def list(): Seq[FileStatus] = synchronized {
    val statuses = listing.filter(_ => newest.isDefined).getOrElse(
      mutable.LinkedHashMap.from(files.list(directory).map(status => status.getPath -> status)))
    if (isLog) listing = Some(statuses)
    statuses.values.toSeq
  }

  /** Removes the file of a batch, now or with others. */
  def delete(path: Path): Unit = synchronized {
    val isOld = newest.exists { case (_, last) => numberOf(path).exists(_ < last) }
    removed += path.getName
    forget(path)
    listing.foreach(_.remove(path))
    if (!isOld) newest = None
    if (isLocal || !isOld || removed.size >= RemovedTogether) {
      files.deleteFiles(directory, removed)
      removed.clear()
    }
  }

  private def forget(path: Path): Unit = contents.remove(path).foreach(bytes => contentBytes -= bytes.length)

  private def numberOf(path: Path): Option[Long] =
    if (isLog && path.getParent == directory) path.getName.stripSuffix(Compacted).toLongOption else None
}

private object LogBatches {
  private val Logs = Set(StoreLocation.OffsetLog, StoreLocation.CommitLog, "_spark_metadata")
  private val Compacted = ".compact"
  // Of all batches together; larger ones are read again.
  private final val RememberedBytes = 1 << 20
  private final val RemovedTogether = 10
}
