package org.apache.spark.sql.statestore

import java.io.FileNotFoundException
import java.net.URI

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FSDataInputStream, FSDataOutputStream, FileStatus, FileSystem, Path}
import org.apache.hadoop.fs.permission.FsPermission
import org.apache.hadoop.util.Progressable

import org.apache.spark.sql.statestore.driver.BackendInput

/**
 * File system of Hadoop for URLs of checkpoints that Hadoop has no connector for. Spark asks for one where it
 * does not use the checkpoint file manager: its state data source qualifies and lists directories with it.
 *
 * Guarantees: reads what `BackendCheckpointFileManager` writes. It does not write files, nor rename them.
 */
class BackendFileSystem extends FileSystem {
  private lazy val files = BackendCheckpointFileManager.clientOf(getConf)
  private var uri: URI = _

  override def initialize(name: URI, conf: Configuration): Unit = {
    super.initialize(name, conf)
    uri = new URI(name.getScheme, name.getAuthority, null, null, null)
  }

  override def getUri: URI = uri

  override def open(path: Path, bufferSize: Int): FSDataInputStream =
    new FSDataInputStream(new BackendInput(files, makeQualified(path)))

  override def getFileStatus(path: Path): FileStatus =
    files.status(makeQualified(path), isFile = false).getOrElse(throw new FileNotFoundException(s"$path does not exist"))

  override def listStatus(path: Path): Array[FileStatus] = files.list(makeQualified(path)).toArray

  override def mkdirs(path: Path, permission: FsPermission): Boolean = {
    files.makeDirectory(makeQualified(path))
    true
  }

  override def delete(path: Path, recursive: Boolean): Boolean = {
    val target = makeQualified(path)
    val isThere = files.status(target, isFile = false).isDefined
    if (isThere) files.delete(target)
    isThere
  }

  override def create(
      path: Path, permission: FsPermission, overwrite: Boolean, bufferSize: Int, replication: Short, blockSize: Long,
      progress: Progressable): FSDataOutputStream =
    refuse(path)

  override def append(path: Path, bufferSize: Int, progress: Progressable): FSDataOutputStream = refuse(path)

  override def rename(from: Path, to: Path): Boolean = refuse(from)

  override def getWorkingDirectory: Path = new Path(uri.toString + "/")

  override def setWorkingDirectory(path: Path): Unit = ()

  private def refuse(path: Path): Nothing = throw new UnsupportedFeatureException(
    s"$path cannot be written: Hadoop has no connector for ${uri.getScheme}: here, and the one of spark-statestore is " +
      "for checkpoints alone. For a checkpointLocation, use configure(..., spark_files='backend'). For data, add the " +
      "connector of the storage to spark.jars.packages, such as org.apache.hadoop:hadoop-aws for s3a:.")
}

private[statestore] object BackendFileSystem {
  // Schemes of object stores, and fsspec's of memory.
  private val Schemes = Seq("s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "wasb", "wasbs", "oss", "memory")

  /** Registers this file system for the schemes that Hadoop has none for. */
  def register(conf: Configuration): Unit = Schemes.filterNot(isServed(_, conf)).foreach { scheme =>
    conf.set(s"fs.$scheme.impl", classOf[BackendFileSystem].getName)
    // Hadoop's cache outlives the session, whose options and backend an instance has.
    conf.setBoolean(s"fs.$scheme.impl.disable.cache", true)
  }

  private def isServed(scheme: String, conf: Configuration): Boolean =
    try {
      FileSystem.getFileSystemClass(scheme, conf)
      true
    } catch {
      // Some connectors are known to Hadoop by name, and their classes are not there.
      case NonFatal(_) | _: NoClassDefFoundError => false
    }
}
