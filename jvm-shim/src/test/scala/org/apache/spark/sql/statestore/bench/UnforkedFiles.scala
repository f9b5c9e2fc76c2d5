package org.apache.spark.sql.statestore.bench

import java.net.URI
import java.nio.file.Files
import java.nio.file.attribute.PosixFilePermissions

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs._
import org.apache.hadoop.fs.permission.FsPermission

/**
 * Hadoop's local files without its native library and without what it then starts programs for:
 * `chmod` for every file that it makes, `readlink` for every one that it renames.
 *
 * So a store that writes through Hadoop can be measured as it is where that library is there.
 */
private[bench] final class UnforkedRawFiles extends RawLocalFileSystem {
  override def setPermission(path: Path, permission: FsPermission): Unit =
    Files.setPosixFilePermissions(pathToFile(path).toPath,
      PosixFilePermissions.fromString(new FsPermission(permission.toShort & 0x1ff).toString.take(9)))

  // The benchmark makes no links.
  override def getFileLinkStatus(path: Path): FileStatus = getFileStatus(path)
}

/** For those who ask for a `FileSystem`. */
final class UnforkedFileSystem extends LocalFileSystem(new UnforkedRawFiles)

/** For those who ask for a `FileContext`. */
final class UnforkedFileContext(uri: URI, conf: Configuration)
  extends ChecksumFs(new UnforkedFileContext.Raw(conf))

private[bench] object UnforkedFileContext {
  private final class Raw(conf: Configuration)
    extends DelegateToFileSystem(FsConstants.LOCAL_FS_URI, UnforkedFileContext.files(conf), conf, "file", false) {
    override def getUriDefaultPort: Int = -1
    override def isValidName(path: String): Boolean = true
  }

  private def files(conf: Configuration): FileSystem = {
    val made = new UnforkedRawFiles
    made.initialize(FsConstants.LOCAL_FS_URI, conf)
    made
  }
}
