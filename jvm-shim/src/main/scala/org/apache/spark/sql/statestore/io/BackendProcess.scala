package org.apache.spark.sql.statestore.io

import java.io.{BufferedReader, File, InputStreamReader}
import java.net.{InetAddress, InetSocketAddress, SocketAddress, StandardProtocolFamily, UnixDomainSocketAddress}
import java.nio.charset.StandardCharsets
import java.nio.file.{Files, Path}
import java.nio.file.attribute.PosixFilePermissions
import java.util.concurrent.TimeUnit

import com.fasterxml.jackson.core.JsonProcessingException
import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}

import org.apache.spark.internal.Logging
import org.apache.spark.sql.statestore.{BackendConnectionException, BackendStartException, BuildInfo}

/**
 * One running `python -m spark_statestore.server`.
 *
 * Guarantees: its socket lies in a directory that only this user can enter, and every connection
 * must prove to know a token that travels over the process's standard input, never over its command line
 * or the connection. The process ends when that input ends, so it cannot outlive this JVM, however the JVM dies.
 */
private[io] final class BackendProcess private (
    process: Process,
    directory: Option[Path],
    val address: SocketAddress,
    val token: Token,
    log: BackendLog) {

  def isAlive: Boolean = process.isAlive

  def pid: Long = process.pid()

  /** What the process wrote last, to tell why it ended. */
  def lastWords: String = log.lastLines

  /** Ends it without asking, whether it listens or not. */
  def kill(): Unit = {
    process.destroyForcibly()
    directory.foreach(BackendProcess.delete)
  }

  def stop(): Unit = {
    // The end of its standard input asks it to leave; the signal is for one that cannot listen.
    process.getOutputStream.close()
    process.waitFor(BackendProcess.StopSeconds, TimeUnit.SECONDS)
    kill()
  }
}

/** Passes a backend's standard error on to Spark's log and remembers its last lines. */
private[io] final class BackendLog(process: Process) extends Logging {
  private val last = new java.util.ArrayDeque[String]

  private val thread = new Thread(() => drain(), s"state-store-backend-log-${process.pid()}")
  thread.setDaemon(true)
  thread.start()

  def lastLines: String = last.synchronized(String.join("\n", last))

  /** Waits until a process that ended has said everything. */
  def join(): Unit = thread.join(2000L)

  private def drain(): Unit = {
    val reader = new BufferedReader(new InputStreamReader(process.getErrorStream, StandardCharsets.UTF_8))
    try {
      var line = reader.readLine()
      while (line != null) {
        val said = line
        last.synchronized {
          if (last.size == 30) last.removeFirst()
          last.addLast(said)
        }
        logInfo(s"state store backend ${process.pid()}: $said")
        line = reader.readLine()
      }
    } catch {
      case _: java.io.IOException => // the process was stopped
    } finally {
      reader.close()
    }
  }
}

private[io] object BackendProcess extends Logging {
  private val StopSeconds = 5L
  private val StartSeconds = 120L
  // sockaddr_un holds 108 bytes on Linux and 104 on macOS, the final zero included.
  private val LongestSocketPath = 100
  // Exit values above this one are signals.
  private val SignalExit = 128
  private val LongestSaid = 200
  private val mapper = new ObjectMapper

  def start(python: String, pythonPath: Seq[String]): BackendProcess = {
    val unix = !System.getProperty("os.name").startsWith("Windows") &&
      System.getProperty("spark.statestore.transport", "unix") == "unix"
    val directory = if (unix) Some(privateDirectory()) else None
    try start(python, pythonPath, directory) catch {
      case e: Throwable =>
        directory.foreach(delete)
        throw e
    }
  }

  private def start(python: String, pythonPath: Seq[String], directory: Option[Path]): BackendProcess = {
    val socket = directory.map(_.resolve("socket"))
    val listen = socket.fold("tcp")(_.toString)
    val builder = new ProcessBuilder(python, "-m", "spark_statestore.server", "--listen", listen)
    val inherited = Option(builder.environment.get("PYTHONPATH")).filter(_.nonEmpty)
    val path = pythonPath ++ inherited
    // A user's json.py in the working directory is not the backend's.
    builder.environment.put("PYTHONSAFEPATH", "1")
    if (path.nonEmpty) builder.environment.put("PYTHONPATH", path.mkString(File.pathSeparator))
    val process = try builder.start() catch {
      case e: java.io.IOException =>
        throw new BackendStartException(
          s"the state store backend needs a Python interpreter, and '$python' cannot be run: " +
            s"${e.getMessage}. Set spark.sql.streaming.stateStore.backend.python or " +
            "spark.pyspark.python to an interpreter that exists on every executor.", e)
    }
    val log = new BackendLog(process)
    try {
      val token = new Token
      tell(process, token)
      val ready = firstLine(process, log, python)
      checkReady(ready, python)
      val address: SocketAddress = socket.fold[SocketAddress](
        new InetSocketAddress(InetAddress.getLoopbackAddress, ready.get("port").asInt))(UnixDomainSocketAddress.of)
      logInfo(s"started state store backend ${process.pid()}: $python, " +
        s"spark-statestore ${ready.path("version").asText}")
      new BackendProcess(process, directory, address, token, log)
    } catch {
      case e: Throwable =>
        process.destroyForcibly()
        throw e
    }
  }

  /** The family to open a channel with for an address. */
  def family(address: SocketAddress): StandardProtocolFamily = address match {
    case _: UnixDomainSocketAddress => StandardProtocolFamily.UNIX
    case _ => StandardProtocolFamily.INET
  }

  private def tell(process: Process, token: Token): Unit =
    try {
      val input = process.getOutputStream
      input.write(token.line)
      input.flush()
    } catch {
      case _: java.io.IOException => // it has ended already, and its first line will be missing
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
          s"the state store backend ('$python -m spark_statestore.server') did not get ready within " +
            s"$StartSeconds s. It said:\n${log.lastLines}", e)
    }
    if (line == null) {
      val ended = process.waitFor(StopSeconds, TimeUnit.SECONDS)
      log.join()
      if (ended && process.exitValue > SignalExit) {
        throw new BackendConnectionException(
          s"the state store backend ${process.pid()} was killed by signal ${process.exitValue - SignalExit} before " +
            s"it was ready. It said:\n${log.lastLines}")
      }
      throw new BackendStartException(notStarted(python, log.lastLines))
    }
    try mapper.readTree(line) catch {
      case e: JsonProcessingException =>
        throw new BackendStartException(
          s"the state store backend ('$python -m spark_statestore.server') was to say in one line how it can be " +
            s"reached, and said '${line.take(LongestSaid)}'. Whatever that interpreter runs at its start " +
            "(sitecustomize, a .pth file, a wrapper script) must print to standard error.", e)
    }
  }

  private def notStarted(python: String, said: String): String = {
    val remedy =
      if (said.contains("No module named spark_statestore") || said.contains("No module named 'spark_statestore'")) {
        "This interpreter has no spark_statestore: install it there with 'pip install spark-statestore', or let " +
          "spark_statestore.configure(builder) ship it with the session."
      } else {
        "Run the same command by hand on the machine of this executor to see what is missing."
      }
    s"the state store backend ('$python -m spark_statestore.server') ended before it was ready. " +
      s"$remedy It said:\n$said"
  }

  private def checkReady(ready: JsonNode, python: String): Unit = {
    if (ready.has("error")) {
      throw new BackendStartException(
        s"the state store backend ('$python -m spark_statestore.server') cannot start: " +
          ready.get("error").asText)
    }
    val version = ready.path("version").asText
    val protocol = ready.path("protocol").asInt
    if (version != BuildInfo.version || protocol != Frames.ProtocolVersion) {
      throw new BackendStartException(
        s"the two halves of spark-statestore do not belong together: the jar is version " +
          s"${BuildInfo.version} (protocol ${Frames.ProtocolVersion}), the Python package that " +
          s"'$python' imports from ${ready.path("location").asText} is version $version (protocol " +
          s"$protocol). Install the same version of both: 'pip install " +
          s"spark-statestore==${BuildInfo.version}' for that interpreter, or use the jar that its " +
          "spark_statestore.jar_path() names.")
    }
  }

  private def privateDirectory(): Path = {
    val mine = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------"))
    val preferred = Files.createTempDirectory("spark-statestore-", mine)
    if (preferred.resolve("socket").toString.length <= LongestSocketPath) {
      preferred
    } else {
      delete(preferred)
      Files.createTempDirectory(java.nio.file.Paths.get("/tmp"), "spark-statestore-", mine)
    }
  }

  private def delete(directory: Path): Unit =
    try {
      Files.deleteIfExists(directory.resolve("socket"))
      Files.deleteIfExists(directory)
    } catch {
      case e: java.io.IOException => logDebug(s"left $directory behind", e)
    }
}
