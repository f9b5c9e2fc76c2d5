package org.apache.spark.sql.statestore.backend

import java.io.{BufferedReader, File, InputStreamReader}
import java.net.UnixDomainSocketAddress
import java.nio.charset.{Charset, StandardCharsets}
import java.nio.file.{Files, Path}
import java.nio.file.attribute.{PosixFilePermissions, UserPrincipal}
import java.util.concurrent.TimeUnit

import com.fasterxml.jackson.core.JsonProcessingException
import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}

import org.apache.spark.internal.Logging
import org.apache.spark.sql.statestore.{BackendConnectionException, BackendStartException, BuildInfo, Errors}

/**
 * One running `python -m spark_statestore.backend` process.
 *
 * Guarantees: its socket is in a directory of mode 0700, and both ends of a connection refuse a peer of another
 * user. The process exits at the end of its standard input, so it cannot outlive this JVM, however the JVM ends.
 *
 * @param user  the user of this JVM
 */
private[statestore] final class BackendProcess private (
    process: Process,
    directory: Path,
    user: UserPrincipal,
    val address: UnixDomainSocketAddress,
    log: BackendLog) {

  def isAlive: Boolean = process.isAlive

  def pid: Long = process.pid()

  /** Last lines of its standard error. */
  def stderrTail: String = log.stderrTail

  /** Refuses a process of another user at the socket: its directory's mode may have been changed. */
  def requireOwnUser(peer: UserPrincipal): Unit =
    if (peer != user) {
      throw new BackendConnectionException(s"the process at the socket of the state store backend $pid is of user $peer " +
        s"instead of $user: it is another process. Check who can write in $directory")
    }

  /** Kills the process. */
  def kill(): Unit = {
    process.destroyForcibly()
    BackendProcess.delete(directory)
  }

  def stop(): Unit = {
    // It exits at the end of its standard input; a process that hangs is killed.
    process.getOutputStream.close()
    process.waitFor(BackendProcess.StopSeconds, TimeUnit.SECONDS)
    kill()
  }
}

/** Copies a backend's standard error to Spark's log and keeps its last lines. */
private[statestore] final class BackendLog(process: Process) extends Logging {
  private val last = new java.util.ArrayDeque[String]

  private val thread = new Thread(() => drain(), s"state-store-backend-log-${process.pid()}")
  thread.setDaemon(true)
  thread.start()

  def stderrTail: String = last.synchronized(String.join("\n", last))

  /** Waits until the standard error of an ended process is drained. */
  def join(): Unit = thread.join(2000L)

  private def drain(): Unit = {
    val reader = new BufferedReader(new InputStreamReader(process.getErrorStream, StandardCharsets.UTF_8))
    try {
      // The backend blocks once the pipe is full, so an OutOfMemoryError must not end this thread.
      while (try drainLine(reader) catch { case _: OutOfMemoryError => true }) {}
    } catch {
      case _: java.io.IOException => // the process was stopped
    } finally {
      reader.close()
    }
  }

  // Returns false at the end.
  private def drainLine(reader: BufferedReader): Boolean = {
    val line = reader.readLine()
    if (line != null) {
      last.synchronized {
        if (last.size == 30) last.removeFirst()
        last.addLast(line)
      }
      logInfo(s"state store backend ${process.pid()}: $line")
    }
    line != null
  }
}

private[statestore] object BackendProcess extends Logging {
  private val StopSeconds = 5L
  private val StartSeconds = 120L
  // sockaddr_un holds 108 bytes on Linux and 104 on macOS, the final zero included.
  private val LongestSocketPath = 100
  // Exit values above this one are signals.
  private val SignalExit = 128
  private val LongestQuoted = 200
  private val mapper = new ObjectMapper

  def start(python: String, pythonPath: Seq[String]): BackendProcess = {
    val directory = privateDirectory()
    try start(python, pythonPath, directory) catch {
      case e: Throwable =>
        delete(directory)
        throw e
    }
  }

  private def namesFilesInAscii: Boolean =
    try Charset.forName(System.getProperty("sun.jnu.encoding")) == StandardCharsets.US_ASCII catch {
      case _: IllegalArgumentException => false
    }

  private def start(python: String, pythonPath: Seq[String], directory: Path): BackendProcess = {
    val socket = directory.resolve("socket")
    // Now it is this JVM's own.
    val user = Files.getOwner(directory)
    val builder = new ProcessBuilder(python, "-m", "spark_statestore.backend", "--listen", socket.toString)
    val inherited = Option(builder.environment.get("PYTHONPATH")).filter(_.nonEmpty)
    val path = pythonPath ++ inherited
    // The working directory is not on the import path: a user's json.py there must not shadow the standard library.
    builder.environment.put("PYTHONSAFEPATH", "1")
    if (path.nonEmpty) builder.environment.put("PYTHONPATH", path.mkString(File.pathSeparator))
    // In a POSIX locale Python names files in ASCII alone, unless it is in UTF-8 mode. Another locale's encoding is kept:
    // with it earlier runs have named their files.
    if (namesFilesInAscii) builder.environment.put("PYTHONUTF8", "1")
    val process = try builder.start() catch {
      case e: java.io.IOException =>
        throw new BackendStartException(
          s"the state store backend needs a Python interpreter, and '$python' cannot be run: " +
            s"${Errors.clause(e)}. Set spark.sql.streaming.stateStore.backend.python or " +
            "spark.pyspark.python to an interpreter that exists on every executor.", e)
    }
    val log = new BackendLog(process)
    try {
      val ready = firstLine(process, log, python)
      checkReady(ready, python)
      logInfo(s"started state store backend ${process.pid()}: $python, " +
        s"spark-statestore ${ready.path("version").asText}")
      new BackendProcess(process, directory, user, UnixDomainSocketAddress.of(socket), log)
    } catch {
      case e: Throwable =>
        process.destroyForcibly()
        throw e
    }
  }

  private def firstLine(process: Process, log: BackendLog, python: String): JsonNode = {
    val answer = new java.util.concurrent.CompletableFuture[String]
    val reader = new Thread(() => {
      val lines = new BufferedReader(new InputStreamReader(process.getInputStream, StandardCharsets.UTF_8))
      try answer.complete(lines.readLine()) catch { case e: Throwable => answer.completeExceptionally(e) }
    }, "state-store-backend-start")
    reader.setDaemon(true)
    reader.start()
    val line = try answer.get(StartSeconds, TimeUnit.SECONDS) catch {
      case e: java.util.concurrent.TimeoutException =>
        throw new BackendStartException(
          s"the state store backend ('$python -m spark_statestore.backend') was not ready within " +
            s"$StartSeconds s. Its standard error:\n${log.stderrTail}", e)
    }
    if (line == null) {
      val ended = process.waitFor(StopSeconds, TimeUnit.SECONDS)
      log.join()
      if (ended && process.exitValue > SignalExit) {
        throw new BackendConnectionException(
          s"the state store backend ${process.pid()} was killed by signal ${process.exitValue - SignalExit} before " +
            s"it was ready. Its standard error:\n${log.stderrTail}")
      }
      throw new BackendStartException(notStarted(python, log.stderrTail))
    }
    try mapper.readTree(line) catch {
      case e: JsonProcessingException =>
        throw new BackendStartException(
          s"the state store backend ('$python -m spark_statestore.backend') must report in one line of standard " +
            s"output that it is ready, but printed '${line.take(LongestQuoted)}'. Whatever that interpreter runs at its " +
            "start (sitecustomize, a .pth file, a wrapper script) must print to standard error.", e)
    }
  }

  private def notStarted(python: String, stderr: String): String = {
    val remedy =
      if (Seq("spark_statestore", "'spark_statestore'").exists(name => stderr.contains(s"No module named $name"))) {
        "This interpreter has no spark_statestore: install it there with 'pip install spark-statestore', or let " +
          "spark_statestore.configure(builder) ship it with the session."
      } else {
        "Run the same command by hand on the machine of this executor to see what is missing."
      }
    s"the state store backend ('$python -m spark_statestore.backend') ended before it was ready. " +
      s"$remedy Its standard error:\n$stderr"
  }

  private def checkReady(ready: JsonNode, python: String): Unit = {
    if (ready.has("error")) {
      throw new BackendStartException(
        s"the state store backend ('$python -m spark_statestore.backend') cannot start: " +
          ready.get("error").asText)
    }
    val version = ready.path("version").asText
    val protocol = ready.path("protocol").asInt
    if (version != BuildInfo.version || protocol != Frames.ProtocolVersion) {
      throw new BackendStartException(
        s"the jar and the Python package of spark-statestore differ in version: the jar is version " +
          s"${BuildInfo.version} (protocol ${Frames.ProtocolVersion}), the Python package that " +
          s"'$python' imports from ${ready.path("location").asText} is version $version (protocol " +
          s"$protocol). Install the same version of both: 'pip install " +
          s"spark-statestore==${BuildInfo.version}' for that interpreter, or use the jar that its " +
          "spark_statestore.jar_path() names.")
    }
  }

  private def privateDirectory(): Path = {
    val ownerOnly = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------"))
    val preferred = Files.createTempDirectory("spark-statestore-", ownerOnly)
    if (preferred.resolve("socket").toString.length <= LongestSocketPath) {
      preferred
    } else {
      delete(preferred)
      Files.createTempDirectory(java.nio.file.Paths.get("/tmp"), "spark-statestore-", ownerOnly)
    }
  }

  private def delete(directory: Path): Unit =
    try {
      // The backend holds a lock on its lock file, see spark_statestore/temporary.py.
      Seq("socket", "lock.new", "lock").foreach(name => Files.deleteIfExists(directory.resolve(name)))
      Files.deleteIfExists(directory)
    } catch {
      case e: java.io.IOException => logDebug(s"left $directory behind", e)
    }
}
