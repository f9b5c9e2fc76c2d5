package org.apache.spark.sql.statestore.io

import java.nio.channels.{ClosedByInterruptException, SocketChannel}
import java.util.concurrent.ConcurrentLinkedDeque
import java.util.concurrent.atomic.{AtomicBoolean, AtomicLong, LongAdder}

import scala.util.control.NonFatal

import com.fasterxml.jackson.core.JsonProcessingException
import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.{SparkContext, SparkEnv, SparkFiles}
import org.apache.spark.internal.Logging
import org.apache.spark.scheduler.{SparkListener, SparkListenerApplicationEnd}
import org.apache.spark.sql.statestore.{BackendConnectionException, BackendException, BuildInfo}

/**
 * The backend of this JVM, for one Python interpreter: starts it when it is first needed, finds it
 * again when it crashed, and lends connections to task threads.
 *
 * Guarantees: at most one process at a time; a request that got no answer is asked again of a
 * fresh connection, and of a fresh process if that one is gone, at most five times. That is safe,
 * since every file name is unique and metadata is published last. An error that the backend
 * answered is never asked again. Nobody waits for ever: see `BackendWatch`.
 */
private[statestore] final class Backend private (python: String) extends Logging {
  import Backend._

  private val idle = new ConcurrentLinkedDeque[BackendConnection]
  private var process: BackendProcess = _
  private val prestarted = new AtomicBoolean
  private var stopped = false
  private var started = 0L
  private val watch = new BackendWatch(connect(_, Forever, watched = false).close(), abandon)

  /** Requests that were answered. */
  val roundTrips = new LongAdder

  /** Starts after the first one, not yet taken by `takeRestarts`. */
  private val restarts = new AtomicLong

  /** Calls of storage that the backend made again, not yet taken by `takeStorageRetries`. */
  val storageRetries = new LongAdder

  /** Resident memory of the backend as of its last answer, in bytes. */
  @volatile var memoryBytes: Long = 0L

  def takeRestarts(): Long = restarts.getAndSet(0L)

  def takeStorageRetries(): Long = storageRetries.sumThenReset()

  def pid: Long = synchronized(if (process == null) -1L else process.pid)

  /** Begins to start the backend without waiting for it; a failure shows at the first request. */
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

  /** Runs one exchange; `body` may run again from its start when the connection breaks. */
  def exchange[T](patience: Patience)(body: BackendConnection => T): T = {
    var attempt = 1
    while (true) {
      try return once(patience, body) catch {
        case e: BackendConnectionException if attempt < MaxAttempts && !Thread.currentThread.isInterrupted =>
          logWarning(s"asking the state store backend again, attempt ${attempt + 1} of $MaxAttempts: " +
            e.getMessage)
          // The other idle connections most likely broke too, and a killed process needs a moment.
          dropConnections()
          Thread.sleep(100L * attempt)
          attempt += 1
        case e: BackendConnectionException =>
          throw new BackendConnectionException(
            s"the state store backend ($python) gave no answer in $attempt attempts: ${e.getMessage}. " +
              s"It said last:\n$lastWords", e)
      }
    }
    throw new IllegalStateException("unreachable")
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

  private def once[T](patience: Patience, body: BackendConnection => T): T = {
    val connection = borrow(patience)
    var healthy = false
    try {
      val result = body(connection)
      healthy = true
      roundTrips.increment()
      result
    } catch {
      // The backend answered with an error and waits for the next request. After what is found in an answer on this
      // side, more of that answer may come.
      case e: BackendException if connection.kind == Frames.Error && !EndsConnection(e.kind) =>
        roundTrips.increment()
        healthy = true
        throw e
    } finally {
      watch.remove(connection)
      if (healthy && connection.isOpen) idle.push(connection) else connection.close()
    }
  }

  private def borrow(patience: Patience): BackendConnection = {
    val connection = idle.poll()
    if (connection == null) {
      connect(running(), patience, watched = true)
    } else {
      connection.patience = patience
      watch.add(connection)
      connection
    }
  }

  private def running(): BackendProcess = synchronized {
    if (stopped) throw new IllegalStateException("the state store backend was stopped with its session")
    if (process == null || !process.isAlive) {
      dropConnections()
      if (process != null) {
        logWarning(s"the state store backend ${process.pid} ended, starting another. It said last:\n" +
          process.lastWords)
        process.stop()
        process = null
      }
      process = BackendProcess.start(python, shippedPath())
      started += 1
      if (started > 1) restarts.incrementAndGet()
    }
    process
  }

  private def connect(to: BackendProcess, patience: Patience, watched: Boolean): BackendConnection = {
    val channel = SocketChannel.open(BackendProcess.family(to.address))
    val connection = new BackendConnection(channel, to, patience)
    if (watched) watch.add(connection)
    try {
      channel.setOption[java.lang.Integer](java.net.StandardSocketOptions.SO_SNDBUF, SendBufferBytes)
      connection.connect(to.address)
      if (!channel.getLocalAddress.isInstanceOf[java.net.UnixDomainSocketAddress]) {
        channel.setOption[java.lang.Boolean](java.net.StandardSocketOptions.TCP_NODELAY, true)
      }
      greet(connection, to.token)
      connection
    } catch {
      case e: Throwable =>
        watch.remove(connection)
        connection.close()
        throw e match {
          case known: BackendException => known
          case killed: ClosedByInterruptException => killed
          case e: java.io.IOException =>
            new BackendConnectionException(s"cannot connect to the state store backend ${to.pid}", e)
          case other => other
        }
    }
  }

  /** Ends a process that does not answer; the next request starts another one. */
  private def abandon(silent: BackendProcess): Unit = {
    synchronized {
      if (process eq silent) process = null
    }
    dropConnections()
    silent.kill()
  }

  private def greet(connection: BackendConnection, token: Token): Unit = {
    val hello = mapper.createObjectNode()
    val challenge = Token.newChallenge()
    hello.put("protocol", Frames.ProtocolVersion)
    hello.put("version", BuildInfo.version)
    hello.put("challenge", challenge)
    val theirs = say(connection, hello)
    val other = theirs.path("challenge").asText
    if (!token.isProof(theirs.path("proof").asText, "backend", challenge, other)) {
      // It may have taken the place of a backend that died; the next attempt sees that it is gone.
      throw new BackendConnectionException("what answers in the place of the state store backend does not know " +
        "the token that the backend was given: it is another process")
    }
    say(connection, mapper.createObjectNode().put("proof", token.proof("shim", challenge, other)))
  }

  private def say(connection: BackendConnection, node: ObjectNode): JsonNode = {
    connection.send(Frames.Control, mapper.writeValueAsBytes(node))
    connection.end()
    val reply = answer(connection)
    connection.receive()
    if (connection.kind != Frames.End) {
      throw new BackendException("Protocol", s"the backend sent a frame of kind ${connection.kind} in a greeting")
    }
    reply
  }

  private def dropConnections(): Unit = {
    var connection = idle.poll()
    while (connection != null) {
      connection.close()
      connection = idle.poll()
    }
  }

  private def lastWords: String = synchronized(if (process == null) "" else process.lastWords)
}

private[statestore] object Backend extends Logging {
  private val MaxAttempts = 5

  private val Forever = new Patience(Int.MaxValue)

  // After these the other end does not wait for the next request.
  private val EndsConnection = Set("Transport", "Protocol", "Timeout", "StorageTimeoutError")

  // A batch's changes leave in one go, rather than by turns with the other side's reads; the
  // system may grant less.
  private val SendBufferBytes = 1 << 20

  private val mapper = new ObjectMapper
  private val backends = new java.util.HashMap[String, Backend]
  private var watching = false

  /** The backend of this JVM that runs under the interpreter. */
  def of(python: String): Backend = synchronized {
    watch()
    backends.computeIfAbsent(python, new Backend(_))
  }

  /** Stops every backend of this JVM; a later `of` makes new ones. */
  def stopAll(): Unit = synchronized {
    backends.values.forEach { backend =>
      try backend.stop() catch {
        case NonFatal(e) => logWarning("a state store backend did not stop cleanly", e)
      }
    }
    backends.clear()
  }

  /** Reads the control frame of an answer, turning an error frame into an exception. */
  def answer(connection: BackendConnection): JsonNode = {
    connection.receive()
    if (connection.kind != Frames.Control && connection.kind != Frames.Error) {
      throw new BackendException("Protocol", s"the backend sent a frame of kind ${connection.kind} out of turn")
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
        throw new BackendException("Protocol", "the backend sent what is no JSON", e)
    }
    if (node == null || !node.isObject) {
      throw new BackendException("Protocol", "the backend sent JSON that is no object")
    }
    node
  }

  def failure(node: JsonNode): BackendException =
    new BackendException(node.path("type").asText("Error"), node.path("message").asText)

  /** What the session ships to executors that have no installed package: see `configure`. */
  private def shippedPath(): Seq[String] = {
    if (SparkEnv.get == null) {
      Nil
    } else {
      val files = Option(new java.io.File(SparkFiles.getRootDirectory()).listFiles()).getOrElse(Array.empty)
      files.filter(f => f.getName.startsWith("spark_statestore-") && f.getName.endsWith(".zip"))
        .map(_.getAbsolutePath).sorted.toSeq
    }
  }

  // A local session's JVM lives on after the session: the application's end is the session's end.
  private def watch(): Unit = {
    if (!watching) {
      watching = true
      Runtime.getRuntime.addShutdownHook(new Thread(() => stopAll(), "state-store-backend-stop"))
    }
    if (backends.isEmpty) {
      SparkContext.getActive.foreach(_.addSparkListener(new SparkListener {
        override def onApplicationEnd(end: SparkListenerApplicationEnd): Unit = stopAll()
      }))
    }
  }
}
