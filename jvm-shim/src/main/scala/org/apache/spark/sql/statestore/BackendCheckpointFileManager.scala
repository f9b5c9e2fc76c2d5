package org.apache.spark.sql.statestore

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FSDataInputStream, FileStatus, FileSystem, Path, PathFilter}

import org.apache.spark.sql.statestore.backend.{Backend, FileClient, PythonInterpreter}
import org.apache.spark.sql.statestore.compat.Since41
import org.apache.spark.sql.statestore.driver.{BackendInput, CommitFigures, FileContent, HandedOverCommits, LogBatches,
  RunningQuery}
import org.apache.spark.sql.statestore.provider.{BackendOptions, CommitCollector, StoreLocation}

/**
 * Checkpoint file manager, set as `spark.sql.streaming.checkpointFileManagerClass`: Spark's own files of a
 * checkpoint (logs of offsets and commits, metadata of queries, operators and schemas) are read and written by
 * this JVM's backend, as state is. The URL of a checkpoint may be any that fsspec knows, without a file system
 * of Hadoop for it.
 *
 * Guarantees: a file appears whole or not at all, also on object stores, and without a rename. A file that
 * exists is replaced only if Spark allows it.
 */
class BackendCheckpointFileManager(path: Path, hadoopConf: Configuration) extends Since41.CheckpointFileManager {
  private val root = BackendCheckpointFileManager.qualify(path, hadoopConf)
  private val files = BackendCheckpointFileManager.clientOf(hadoopConf)
  private val batches = new LogBatches(files, root, isLocal)
  private val isCommitLog = root.getName == StoreLocation.CommitLog
  private val isOffsetLog = root.getName == StoreLocation.OffsetLog
  private val openedAt = System.nanoTime()

  override def createAtomic(path: Path, overwriteIfPossible: Boolean): Since41.CancellableOutput = {
    announceRun()
    val content = new FileContent
    new AtomicOutput(files, qualified(path), overwriteIfPossible, content, batches,
      if (isOffsetLog) besideCommits else { create => awaitCommits(path.getName, content); create() })
  }

  // In real-time mode the tasks of a batch have handed their commits over before its offsets are written: both take as long as
  // the storage needs, at the same time.
  private def besideCommits(create: () => Unit): Unit = {
    val log = new Path(root.getParent, StoreLocation.CommitLog).toString
    CommitCollector.prepareBarrier(log)
    try create() catch {
      case e: Throwable =>
        CommitCollector.abandonBarrier(log)
        throw e
    }
  }

  // A run lists its log of offsets first if there is one, and adds a batch to it before the tasks of the batch begin, on
  // the thread that writes the commit log later. The directory of a new query's log does not exist on an object store.
  // User code may list the log of another query, as the state data source does, also in `foreachBatch`.
  private def announceRun(): Unit = if (isOffsetLog) {
    ownQuery.foreach { query =>
      // Asks the query itself, as an application may have sessions that do not share their queries.
      CommitCollector.announce(
        new Path(root.getParent, StoreLocation.CommitLog).toString, query.runId.toString, () => query.isActive)
    }
  }

  // The calling thread's query, if this is a log of its own.
  private def ownQuery: Option[Since41.StreamExecution] = RunningQuery.current().filter { query =>
    BackendCheckpointFileManager.qualify(new Path(query.resolvedCheckpointRoot), hadoopConf) == root.getParent
  }

  private def awaitCommits(batch: String, entry: FileContent): Unit = if (isCommitLog) {
    try {
      ownQuery.foreach(query => CommitCollector.requireAnnounced(root.toString, query.runId.toString))
      CommitCollector.barrier(root.toString)
      HandedOverCommits.barrier(root.toString, batch, openedAt, entry.parts(), files.backend)
    } finally {
      CommitFigures.settled(root.toString)
    }
  }

  override def open(path: Path): FSDataInputStream = {
    val target = qualified(path)
    new FSDataInputStream(batches.contentOf(target).fold(new BackendInput(files, target))(new BackendInput(files, target, _)))
  }

  override def list(path: Path, filter: PathFilter): Array[FileStatus] = {
    val target = qualified(path)
    announceRun()
    val statuses = if (target == root) batches.list() else files.list(target)
    statuses.filter(status => filter.accept(status.getPath)).toArray
  }

  override def mkdirs(path: Path): Unit = files.makeDirectory(qualified(path))

  override def exists(path: Path): Boolean = {
    val target = qualified(path)
    batches.exists(target).getOrElse(files.status(target, batches.isBatch(target)).isDefined)
  }

  override def delete(path: Path): Unit = {
    val target = qualified(path)
    if (batches.isBatch(target)) batches.delete(target) else files.delete(target)
  }

  override def isLocal: Boolean = root.toUri.getScheme == "file"

  override def createCheckpointDirectory(): Path = {
    files.makeDirectory(root)
    root
  }

  // Operator metadata of a restored checkpoint names schema files without scheme and authority.
  private def qualified(path: Path): Path =
    if (path.toUri.getScheme == null && path.isAbsolute) path.makeQualified(root.toUri, root)
    else BackendCheckpointFileManager.qualify(path, hadoopConf)
}

/**
 * A file that appears when the stream is closed, unless it is cancelled before.
 *
 * @param publish  called with the creation of the file, which it runs
 */
private final class AtomicOutput(
    files: FileClient, path: Path, overwrite: Boolean, content: FileContent, batches: LogBatches,
    publish: (() => Unit) => Unit)
  extends Since41.CancellableOutput(content) {
  private var isDone = false

  override def close(): Unit = synchronized {
    if (!isDone) {
      isDone = true
      try {
        flush()
        publish(() => files.create(path, () => content.parts(), overwrite))
        batches.created(path, content)
      } finally {
        content.discard()
      }
    }
  }

  override def cancel(): Unit = synchronized {
    if (!isDone) {
      isDone = true
      content.discard()
    }
  }
}

private[statestore] object BackendCheckpointFileManager {
  /** Returns a path with the scheme that Hadoop gives to paths without one. */
  def qualify(path: Path, hadoopConf: Configuration): Path =
    if (path.toUri.getScheme != null && path.isAbsolute) path
    else path.makeQualified(FileSystem.getDefaultUri(hadoopConf), new Path(System.getProperty("user.dir")))

  /** Returns a client with the options of the session that a configuration was made for. */
  def clientOf(hadoopConf: Configuration): FileClient = {
    import scala.jdk.CollectionConverters._
    val settings = hadoopConf.getPropsWithPrefix(BackendOptions.Prefix).asScala
    val options = BackendOptions.parse(settings.map { case (name, value) => BackendOptions.Prefix + name -> value }.toMap)
    new FileClient(Backend.of(PythonInterpreter.chooseForFiles(options, hadoopConf)), options)
  }
}
