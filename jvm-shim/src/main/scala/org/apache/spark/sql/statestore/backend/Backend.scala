package org.apache.spark.sql.statestore.backend

import java.net.{StandardProtocolFamily, StandardSocketOptions}
import java.nio.channels.{ClosedByInterruptException, SocketChannel}
import java.util.concurrent.{ConcurrentHashMap, ConcurrentLinkedDeque}
import java.util.concurrent.atomic.{AtomicBoolean, LongAdder}

import jdk.net.ExtendedSocketOptions

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.core.JsonProcessingException
import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.{SparkContext, SparkEnv, SparkFiles}
import org.apache.spark.internal.Logging
import org.apache.spark.scheduler.{SparkListener, SparkListenerApplicationEnd}
import org.apache.spark.sql.statestore.{BackendConnectionException, BackendException, BuildInfo, Errors}
import org.apache.spark.sql.statestore.provider.BackendOptions

/**
 * The backend of this JVM for one Python interpreter: starts the process on first use, restarts it
 * after a crash, and pools its connections.
 *
 * Guarantees: at most one process at a time. A request without an answer is retried at most four
 * times, on a new connection and on a new process if the old one has ended; that is safe because file
 * names are unique and metadata is published last. An error that the backend reported is not retried.
 * Waiting is bounded, see `BackendWatchdog`.
 */
private[statestore] final class Backend private (python: String) extends Logging {
  import Backend._

  private val idle = new ConcurrentLinkedDeque[BackendConnection]
  private var process: BackendProcess = _
  private val prestarted = new AtomicBoolean
  private val used = ConcurrentHashMap.newKeySet[String]
  private var stopped = false
  private var started = 0L
  private val watch = new BackendWatchdog(connect(_, Forever, watched = false).close(), abandon)

  /** Number of answered requests. */
  val roundTrips = new LongAdder

  val restarts = new ReportedCounter

  /** Retries of storage calls. */
  val storageRetries = new ReportedCounter

  /** Damaged or missing streams that loads have replaced. */
  val streamsRepaired = new ReportedCounter

  /** Commits that the backend answered, the bytes and the objects that they wrote. */
  val commits, bytesWritten, objectsWritten = new LongAdder

  /** Resident memory of the backend as of its last answer, in bytes. */
  @volatile var memoryBytes: Long = 0L

  def recordCommit(cost: CommitCost): Unit = {
    commits.increment()
    bytesWritten.add(cost.bytes)
    objectsWritten.add(cost.objects)
  }

  private def isRunning: Boolean = synchronized(process != null && process.isAlive)

  def pid: Long = synchronized(if (process == null) -1L else process.pid)

  /** Logs that state goes to a destination, once for each of them. */
  def logUse(destination: String): Unit =
    if (used.add(destination)) {
      logInfo(s"state store: $destination, interpreter ${PythonInterpreter.located(python)}")
    }

  /** Starts the backend asynchronously; the first request reports a failure. */
  def prestart(): Unit = {
    if (prestarted.compareAndSet(false, true)) {
      val thread = new Thread(() => {
        try running() catch {
          case NonFatal(e) => logDebug("the state store backend did not start ahead of time", e)
        }
      }, "state-store-backend-prestart")
      thread.setDaemon(true)
      thread.start()
    }
  }

  /** Runs one exchange; `body` is repeated from its start if the connection breaks. */
  def exchange[T](timeout: RequestTimeout)(body: BackendConnection => T): T = {
    var attempt = 1
    while (true) {
      try return once(timeout, body) catch {
        case e: BackendConnectionException if attempt < MaxAttempts && !Thread.currentThread.isInterrupted =>
          logWarning(s"retrying a request to the state store backend, attempt ${attempt + 1} of $MaxAttempts: " +
            e.getMessage)
          // Idle connections to a killed process are broken too.
          dropConnections()
          Thread.sleep(100L * attempt)
          attempt += 1
        case e: BackendConnectionException =>
          throw new BackendConnectionException(
            s"the state store backend ($python) did not answer in $attempt attempts: ${Errors.clause(e)}. " +
              s"Last lines of its standard error:\n$stderrTail", e)
      }
    }
    throw new IllegalStateException("unreachable")
  }

  /** Runs one exchange, without a repetition if the connection breaks. */
  def exchangeOnce[T](timeout: RequestTimeout)(body: BackendConnection => T): T = once(timeout, body)

  /** Validates options in the backend, and with `directories` whether its interpreter can use those that they name. */
  def check(options: BackendOptions, directories: Boolean): Unit = {
    val request = mapper.createObjectNode().put("op", "check").put("directories", directories)
    options.addTo(request.putObject("options"))
    exchange(new RequestTimeout(options.storageTimeoutSeconds))(roundTrip(_, request))
  }

  def stop(): Unit = synchronized {
    stopped = true
    watch.stop()
    dropConnections()
    if (process != null) {
      process.stop()
      process = null
    }
  }

  private def once[T](timeout: RequestTimeout, body: BackendConnection => T): T = {
    val connection = borrow(timeout)
    var healthy = false
    try {
      val result = body(connection)
      healthy = true
      roundTrips.increment()
      result
    } catch {
      case e: BackendException if isAnswer(e, connection) =>
        roundTrips.increment()
        healthy = true
        throw e
    } finally {
      watch.remove(connection)
      if (healthy && connection.isOpen) idle.push(connection) else connection.close()
    }
  }

  private def borrow(timeout: RequestTimeout): BackendConnection = {
    val connection = idle.poll()
    if (connection == null) {
      connect(running(), timeout, watched = true)
    } else {
      connection.timeout = timeout
      watch.add(connection)
      connection
    }
  }

  private def running(): BackendProcess = synchronized {
    if (stopped) throw new IllegalStateException("the state store backend was stopped with its session")
    if (process == null || !process.isAlive) {
      dropConnections()
      if (process != null) {
        logWarning(s"the state store backend ${process.pid} ended and is restarted. Last lines of its standard " +
          s"error:\n${process.stderrTail}")
        process.stop()
        process = null
      }
      process = BackendProcess.start(python, shippedPath())
      started += 1
      if (started > 1) restarts.add(1)
    }
    process
  }

  private def connect(to: BackendProcess, timeout: RequestTimeout, watched: Boolean): BackendConnection = {
    val channel = SocketChannel.open(StandardProtocolFamily.UNIX)
    val connection = new BackendConnection(channel, to, timeout)
    if (watched) watch.add(connection)
    try {
      channel.setOption[java.lang.Integer](StandardSocketOptions.SO_SNDBUF, SendBufferBytes)
      connection.connect(to.address)
      to.requireOwnUser(channel.getOption(ExtendedSocketOptions.SO_PEERCRED).user)
      handshake(connection)
      connection
    } catch {
      case e: Throwable =>
        watch.remove(connection)
        connection.close()
        throw e match {
          case error: BackendException => error
          case killed: ClosedByInterruptException => killed
          case e: java.io.IOException =>
            new BackendConnectionException(s"cannot connect to the state store backend ${to.pid}", e)
          case error => error
        }
    }
  }

  /** Kills an unresponsive process; the next request starts another one. */
  private def abandon(silent: BackendProcess): Unit = {
    synchronized {
      if (process eq silent) process = null
    }
    dropConnections()
    silent.kill()
  }

  // The backend compares the versions.
  private def handshake(connection: BackendConnection): Unit =
    roundTrip(connection, mapper.createObjectNode().put("protocol", Frames.ProtocolVersion).put("version", BuildInfo.version))

  private def dropConnections(): Unit = {
    var connection = idle.poll()
    while (connection != null) {
      connection.close()
      connection = idle.poll()
    }
  }

  private def stderrTail: String = synchronized(if (process == null) "" else process.stderrTail)
}

private[statestore] object Backend extends Logging {
  private val MaxAttempts = 5

  private val Forever = new RequestTimeout(Int.MaxValue)

  // After these errors the backend closes the connection.
  private val EndsConnection = Set("Transport", "Protocol", "Timeout", "StorageTimeoutError")

  // Fewer context switches while changes are sent; the system may grant less.
  private val SendBufferBytes = 1 << 20

  private val mapper = new ObjectMapper
  private val backends = new java.util.HashMap[String, Backend]
  private lazy val shutdownHook = {
    val hook = new Thread(() => stopAll(), "state-store-backend-stop")
    Runtime.getRuntime.addShutdownHook(hook)
    hook
  }

  // The application whose end stops the backends; null before one is active.
  private var watched: SparkContext = _

  /** The backend of this JVM that runs under the interpreter. */
  def of(python: String): Backend = {
    // Not within this lock: the constructor of a context has the lock that this needs, and starts plugins, which need this one.
    val active = SparkContext.getActive
    synchronized {
      shutdownHook
      active.foreach(watch)
      backends.computeIfAbsent(python, new Backend(_))
    }
  }

  /** The backends of this JVM whose processes run. */
  def running: Seq[Backend] = synchronized(backends.values.asScala.toList).filter(_.isRunning)

  /** Returns a figure's sum over the backends of this JVM. */
  def sum(figure: Backend => Long): Long = synchronized(backends.values.asScala.iterator.map(figure).sum)

  /** Starts a backend for one use, in a JVM that keeps none. */
  def temporary(python: String)(use: Backend => Unit): Unit = {
    val backend = new Backend(python)
    try use(backend) finally backend.stop()
  }

  /** Stops every backend of this JVM; a later `of` starts new ones. */
  def stopAll(): Unit = synchronized {
    backends.values.forEach { backend =>
      try backend.stop() catch {
        case NonFatal(e) => logWarning("a state store backend did not stop cleanly", e)
      }
    }
    backends.clear()
    watched = null
  }

  /** Reads the control frame of an answer; throws the exception of an error frame. */
  def answer(connection: BackendConnection): JsonNode = {
    connection.receive()
    if (connection.kind != Frames.Control && connection.kind != Frames.Error) {
      throw new BackendException("Protocol", s"the backend sent an unexpected frame of kind ${connection.kind}")
    }
    val node = readNode(connection)
    if (connection.kind == Frames.Error) throw failure(node)
    node
  }

  /** Reads a payload that is a JSON object. */
  def readNode(connection: BackendConnection): JsonNode = {
    val payload = connection.payload()
    val node = try mapper.readTree(payload) catch {
      case e: JsonProcessingException =>
        throw new BackendException("Protocol", "the backend sent a control frame that is not valid JSON", e)
    }
    if (node == null || !node.isObject) {
      throw new BackendException("Protocol", "the backend sent a control frame that is not a JSON object")
    }
    node
  }

  /** Sends a request of one control frame, and reads an answer of one. */
  def roundTrip(connection: BackendConnection, request: ObjectNode): JsonNode = {
    connection.send(Frames.Control, mapper.writeValueAsBytes(request))
    connection.end()
    val reply = answer(connection)
    expectEnd(connection)
    reply
  }

  /**
   * True if an error is an answer, after which the backend reads the next request. After an error that was detected on this
   * side, more of that answer may come.
   */
  def isAnswer(error: BackendException, connection: BackendConnection): Boolean =
    connection.kind == Frames.Error && !EndsConnection(error.kind)

  /** Reads the payload of a frame of one kind. */
  def receive(connection: BackendConnection, kind: Byte): Array[Byte] = {
    connection.receive()
    if (connection.kind != kind) throw unexpected(connection)
    connection.payload()
  }

  /** Reads the end of an answer. */
  def expectEnd(connection: BackendConnection): Unit = {
    connection.receive()
    if (connection.kind != Frames.End) throw unexpected(connection)
  }

  /** Builds the error for a frame that does not belong there; the one that the backend sent instead, if it did. */
  def unexpected(connection: BackendConnection): BackendException =
    if (connection.kind == Frames.Error) failure(readNode(connection))
    else new BackendException("Protocol", s"the backend sent an unexpected frame of kind ${connection.kind}")

  def failure(node: JsonNode): BackendException =
    new BackendException(node.path("type").asText("Error"), node.path("message").asText)

  /** Archives of the Python package that the session ships to executors, see `configure`. */
  private def shippedPath(): Seq[String] = {
    if (SparkEnv.get == null) {
      Nil
    } else {
      val files = Option(new java.io.File(SparkFiles.getRootDirectory()).listFiles()).getOrElse(Array.empty)
      files.filter(f => f.getName.startsWith("spark_statestore-") && f.getName.endsWith(".zip"))
        .map(_.getAbsolutePath).sorted.toSeq
    }
  }

  // A JVM may outlive its session: backends stop with the application.
  private def watch(application: SparkContext): Unit = if (application ne watched) {
    // What a late thread of an ended application has started.
    if (watched != null) stopAll()
    watched = application
    application.addSparkListener(new SparkListener {
      override def onApplicationEnd(end: SparkListenerApplicationEnd): Unit = endOf(application)
    })
  }

  private def endOf(application: SparkContext): Unit = synchronized(if (application eq watched) stopAll())
}
