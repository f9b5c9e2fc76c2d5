package org.apache.spark.sql.statestore.bench

import java.net.URI
import java.nio.file.Files
import java.nio.file.attribute.PosixFilePermissions

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs._
import org.apache.hadoop.fs.permission.FsPermission

/**
 * Hadoop's local file system without the processes that it starts if its native library is missing:
 * `chmod` for every created file, `readlink` for every renamed one.
 *
 * Stores that write through Hadoop then perform as with that library.
 */
private[bench] final class UnforkedRawFiles extends RawLocalFileSystem {
  override def setPermission(path: Path, permission: FsPermission): Unit =
    Files.setPosixFilePermissions(pathToFile(path).toPath,
      PosixFilePermissions.fromString(new FsPermission(permission.toShort & 0x1ff).toString.take(9)))

  // The benchmark makes no links.
  override def getFileLinkStatus(path: Path): FileStatus = getFileStatus(path)
}

/** The same as a `FileSystem`. */
final class UnforkedFileSystem extends LocalFileSystem(new UnforkedRawFiles)

/** The same as a `FileContext`. */
final class UnforkedFileContext(uri: URI, conf: Configuration)
  extends ChecksumFs(new UnforkedFileContext.Raw(conf))

private[bench] object UnforkedFileContext {
  private final class Raw(conf: Configuration)
    extends DelegateToFileSystem(FsConstants.LOCAL_FS_URI, UnforkedFileContext.files(conf), conf, "file", false) {
    override def getUriDefaultPort: Int = -1
    override def isValidName(path: String): Boolean = true
  }

  private def files(conf: Configuration): FileSystem = {
    val fileSystem = new UnforkedRawFiles
    fileSystem.initialize(FsConstants.LOCAL_FS_URI, conf)
    fileSystem
  }
}
