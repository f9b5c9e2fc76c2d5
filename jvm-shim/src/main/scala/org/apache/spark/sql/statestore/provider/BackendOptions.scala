package org.apache.spark.sql.statestore.provider

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.statestore.InvalidOptionException

/**
 * The options below `spark.sql.streaming.stateStore.backend.` of one store.
 *
 * Guarantees: every name is known and every value is valid by the option table, which the build
 * writes from spark_statestore/options.py into this jar.
 */
private[statestore] final class BackendOptions private (values: BackendOptions.Values) {
  def get(name: String): Option[String] = values.get(name)

  def all: BackendOptions.Values = values

  def storageTimeoutSeconds: Option[Long] = values.get("storageTimeoutSeconds").map(_.toLong)

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

  def snapshotInterval(sparks: Int): Int = values.get("snapshotInterval").map(_.toInt).getOrElse(sparks)

  def numRetained(sparks: Int): Int = values.get("numRetained").map(_.toInt).getOrElse(sparks)

  /** Heap limit of all stores of this JVM, in bytes. */
  def maxHeapBytes: Option[Long] = values.get("maxHeapBytes").flatMap(BackendOptions.bytes)

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

  private val Size = "(?i)\\s*(\\d+)\\s*(b|[kmg]i?b?)?\\s*".r

  // Scheme, if there is one, then user:password@ before the host, which no message may show; not host:port/path.
  private val Credentials = "^([A-Za-z][A-Za-z0-9+.-]*://)?+([^@]*?):(?!\\d+/)[^@]*@".r

  private lazy val table: Map[String, JsonNode] = {
    val stream = getClass.getResourceAsStream("/spark-statestore-options.json")
    if (stream == null) {
      throw new IllegalStateException("the jar has no option table: rebuild it")
    }
    try new ObjectMapper().readTree(stream).elements().asScala.map(o => o.get("name").asText -> o).toMap
    finally stream.close()
  }

  /** Reads and validates the backend's options in Spark's configuration. */
  def parse(confs: Map[String, String]): BackendOptions = {
    val values = confs.collect { case (key, value) if key.startsWith(Prefix) => key.drop(Prefix.length) -> value.trim }
    values.foreach { case (name, value) => check(name, value) }
    new BackendOptions(values)
  }

  /** Returns the option that a name differs from by case or underscores only. */
  def spelling(name: String): Option[String] = table.keys.find(_.equalsIgnoreCase(name.replace("_", "")))

  /** Returns a value without its password, for logs and messages. */
  def withoutPassword(value: String): String = Credentials.findFirstMatchIn(value).fold(value) { found =>
    Option(found.group(1)).getOrElse("") + "...@" + value.drop(found.end)
  }

  // Stricter than `withoutPassword`: a colon and an at sign may be part of a path.
  private def hasPassword(url: String): Boolean =
    Credentials.findFirstMatchIn(url).exists(found => found.group(1) != null && !found.group(2).contains('/'))

  private def check(name: String, value: String): Unit = {
    val option = table.getOrElse(name, throw new InvalidOptionException(
      s"'$Prefix$name' is not an option of spark-statestore. " + suggestion(name) +
        s"The options are: ${table.keys.toSeq.sorted.mkString(", ")}."))
    val choices = option.path("choices").elements().asScala.map(_.asText).toSeq
    option.get("type").asText match {
      case "choice" if !choices.contains(value) => refuse(name, value, s"one of ${choices.mkString(", ")}")
      case "boolean" if value != "true" && value != "false" => refuse(name, value, "true or false")
      case "integer" => number(name, value, option, value.toLongOption, "a whole number")
      case "size" => number(name, value, option, bytes(value), "a size such as 20k, 5m or 1048576")
      case "text" if value.isEmpty => refuse(name, value, "not empty")
      case "text" if hasPassword(value) => throw new InvalidOptionException(
        s"'$Prefix$name' is a URL that contains a password. Spark shows its settings in its UI: take the " +
          "password out. Credentials come from the environment of the executors, or from fsspec's configuration files.")
      case "text" => refusal(option, value).foreach(refuse(name, withoutPassword(value), _))
      case _ =>
    }
  }

  // Describes the valid form if the value has one that the table refuses.
  private def refusal(option: JsonNode, value: String): Option[String] =
    option.path("refused").elements().asScala.find(form => value.matches(form.get("pattern").asText))
      .map(_.get("form").asText)

  private def number(
      name: String, value: String, option: JsonNode, parsed: Option[Long], form: String): Unit = {
    val least = option.path("least").asLong(Long.MinValue)
    val most = option.path("most").asLong(Long.MaxValue)
    parsed match {
      case None => refuse(name, value, form)
      case Some(n) if n < least => refuse(name, value, s"$form of at least $least")
      case Some(n) if n > most => refuse(name, value, s"$form of at most $most")
      case _ =>
    }
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

  private def suggestion(name: String): String =
    spelling(name).map(k => s"Did you mean '$Prefix$k'? ").getOrElse("")

  private def refuse(name: String, value: String, form: String): Nothing =
    throw new InvalidOptionException(s"'$Prefix$name' is '$value', but it must be $form.")
}
