package org.apache.spark.sql.statestore.provider

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.statestore.BuildInfo
import org.apache.spark.sql.statestore.backend.RequestTimeout

/**
 * The options below `spark.sql.streaming.stateStore.backend.` of one store.
 *
 * They are only parsed here: `OptionCheck` has a backend validate them when a query starts, and each backend validates
 * those that requests carry. Until then an invalid value reads as the default.
 */
private[statestore] final class BackendOptions private (values: BackendOptions.Values) {
  def get(name: String): Option[String] = values.get(name)

  def all: BackendOptions.Values = values

  def storageTimeoutSeconds: Long =
    values.get("storageTimeoutSeconds").flatMap(_.toLongOption).filter(_ > 0).getOrElse(RequestTimeout.DefaultSeconds)

  def python: Option[String] = values.get("python")

  def driverPython: Option[String] = values.get("driverPython")

  /** True for `batch`, false for `task`, None for `auto`. */
  def commitsByBatch: Option[Boolean] = values.get("commit").filter(_ != "auto").map(_ == "batch")

  def checkpointsDir: Option[String] = values.get("checkpointsDir")

  /** True if checkpoints are on the driver: memory storage without a directory. */
  def isOnDriver: Boolean = isMemory && checkpointsDir.isEmpty

  /** True if state is stored inside of metadata. */
  def isMemory: Boolean = get("storage").contains("memory")

  /** True if the session's queries use this store without naming its class. */
  def isRealTimeMode: Boolean = get("realTimeMode").contains("true")

  /** Most bytes of local copies in their directory. */
  def localRecoveryMaxBytes: Long =
    values.get("localRecoveryMaxBytes").flatMap(BackendOptions.bytes).getOrElse(BackendOptions.DefaultCopyBytes)

  /** Heap limit of all stores of this JVM, in bytes. */
  def maxHeapBytes: Option[Long] = values.get("maxHeapBytes").flatMap(BackendOptions.bytes)

  /** True if state moves to executors that join. */
  def rebalances: Boolean = !get("rebalance").contains("false")

  /** True if the session gives queries a number of state partitions. */
  def hasPartitions: Boolean = values.contains("partitions")

  /** Describes the storage and its directory for a log message. */
  def destination(checkpointRoot: String): String = {
    val directory = if (isOnDriver) "none (state is on the driver)"
      else BackendOptions.withoutPassword(checkpointsDir.getOrElse(checkpointRoot))
    s"storage ${if (isMemory) "memory" else "filesystem"}, directory $directory"
  }

  /** Adds all options to a JSON object, as strings. */
  def addTo(node: ObjectNode): Unit =
    values.toSeq.sorted.foreach { case (name, value) => node.put(name, value) }
}

private[statestore] object BackendOptions {
  type Values = Map[String, String]

  val Prefix = "spark.sql.streaming.stateStore.backend."

  val RealTimeMode: String = Prefix + "realTimeMode"

  private final val DefaultCopyBytes = 64L << 30

  private val Size = "(?i)\\s*(\\d+)\\s*(b|[kmg]i?b?)?\\s*".r

  // Scheme, if there is one, then user:password@ before the host, which no message may show; not host:port/path.
  private val Credentials = "^([A-Za-z][A-Za-z0-9+.-]*://)?+([^@]*?):(?!\\d+/)[^@]*@".r

  /** Reads the backend's options in Spark's configuration. */
  def parse(confs: Map[String, String]): BackendOptions =
    new BackendOptions(
      confs.collect { case (key, value) if key.startsWith(Prefix) => key.drop(Prefix.length) -> value.trim })

  /** Returns the option that a name differs from by case or underscores only. */
  def spelling(name: String): Option[String] = BuildInfo.options.find(_.equalsIgnoreCase(name.replace("_", "")))

  /** Returns a value without its password, for logs and messages. */
  def withoutPassword(value: String): String = Credentials.findFirstMatchIn(value).fold(value) { credentials =>
    Option(credentials.group(1)).getOrElse("") + "...@" + value.drop(credentials.end)
  }

  private def bytes(value: String): Option[Long] = value match {
    case Size(digits, unit) =>
      val shift = Option(unit).map(_.toLowerCase(java.util.Locale.ROOT).charAt(0)) match {
        case Some('k') => 10
        case Some('m') => 20
        case Some('g') => 30
        case _ => 0
      }
      digits.toLongOption.filter(_ <= (Long.MaxValue >> shift)).map(_ << shift)
    case _ => None
  }
}
