package org.apache.spark.sql.statestore.backend

import java.io.File
import java.lang.ProcessBuilder.Redirect
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path}
import java.util.concurrent.TimeUnit.SECONDS

import scala.util.Try

import org.apache.spark.{SPARK_VERSION, SparkConf}
import org.apache.spark.api.python.PythonUtils

/**
 * Settings with which the Python workers of this JVM's tasks take less time for each task.
 *
 * Guarantees: a worker fails with none of them. The daemon is set once the interpreter of the tasks has imported it on this
 * machine, and sockets are set if their paths are short enough here. A setting that is present stays. Nothing waits for the import.
 */
private[statestore] object PythonWorkers {
  /** Setting by which a session asks for them: the interpreter of its tasks. */
  val InterpreterKey = "spark.statestore.pythonWorkers"

  private val DaemonKey = "spark.python.daemon.module"
  private val SocketsKey = "spark.python.unix.domain.socket.enabled"
  private val SocketDirectoryKey = "spark.python.unix.domain.socket.dir"
  private val Daemon = "spark_statestore.worker_daemon"
  private val ProbeSeconds = 30L

  // The path of a socket has at most 107 bytes, and Spark names it by a UUID.
  private val LongestDirectory = 60

  /** Adds to the settings of this executor, which Spark reads for each task. */
  def settle(conf: SparkConf): Unit = {
    // Spark 4.0 has no such sockets.
    if (conf.contains(InterpreterKey) && !SPARK_VERSION.startsWith("4.0.") && !conf.contains(SocketsKey) && hasShortSockets(conf)) {
      conf.set(SocketsKey, "true")
    }
    settleDaemon(conf)
  }

  /** Adds the daemon to the settings, soon. */
  def settleDaemon(conf: SparkConf): Unit = conf.getOption(InterpreterKey).foreach { interpreter =>
    if (!conf.contains(DaemonKey)) {
      val probe = new Thread(() => if (canImportDaemon(interpreter)) conf.set(DaemonKey, Daemon), "state-store-python-workers")
      probe.setDaemon(true)
      probe.start()
    }
  }

  private def hasShortSockets(conf: SparkConf): Boolean = {
    val directory = Path.of(conf.get(SocketDirectoryKey, System.getProperty("java.io.tmpdir"))).toAbsolutePath
    directory.toString.getBytes(UTF_8).length <= LongestDirectory && Files.isWritable(directory)
  }

  private def canImportDaemon(interpreter: String): Boolean = Try {
    val builder = new ProcessBuilder(interpreter, "-m", Daemon, "--probe")
    // As Spark has it for the daemon.
    builder.environment().put("PYTHONPATH", PythonUtils.mergePythonPaths(
      PythonUtils.sparkPythonPath, sys.env.getOrElse("PYTHONPATH", "")))
    val process = builder.redirectErrorStream(true).redirectOutput(Redirect.DISCARD).redirectInput(new File("/dev/null")).start()
    try process.waitFor(ProbeSeconds, SECONDS) && process.exitValue == 0 finally process.destroyForcibly()
  }.getOrElse(false)
}
