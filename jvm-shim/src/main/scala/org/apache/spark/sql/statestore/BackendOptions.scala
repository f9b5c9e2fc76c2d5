package org.apache.spark.sql.statestore

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode

/**
 * The options below `spark.sql.streaming.stateStore.backend.` as one store uses them.
 *
 * Guarantees: every name is known and every value has the form that the option table demands. The
 * table is spark_statestore/options.py, written into this jar when it was built.
 */
private[statestore] final class BackendOptions private (values: Map[String, String]) {
  def get(name: String): Option[String] = values.get(name)

  def python: Option[String] = values.get("python")

  def checkpointsDir: Option[String] = values.get("checkpointsDir")

  /** Whether neither state nor metadata lies in files: then the driver keeps both. */
  def isKeptOnDriver: Boolean = isMemory && checkpointsDir.isEmpty

  /** Whether state lies inside of metadata. */
  def isMemory: Boolean = get("storage").contains("memory")

  def snapshotInterval(sparks: Int): Int = values.get("snapshotInterval").map(_.toInt).getOrElse(sparks)

  def numRetained(sparks: Int): Int = values.get("numRetained").map(_.toInt).getOrElse(sparks)

  /** What all stores of this JVM may have of its heap. */
  def maxHeapBytes: Option[Long] = values.get("maxHeapBytes").flatMap(BackendOptions.bytes)

  /** Adds what the backend needs to know, as strings, to a JSON object. */
  def addTo(node: ObjectNode): Unit =
    values.toSeq.sorted.foreach { case (name, value) => node.put(name, value) }
}

private[statestore] object BackendOptions {
  val Prefix = "spark.sql.streaming.stateStore.backend."

  private val Size = "(?i)\\s*(\\d+)\\s*(b|[kmg]i?b?)?\\s*".r

  // A user, a colon and a password before the host, and not a host, a port and a path; never what a message may show.
  private val Password = "[A-Za-z][A-Za-z0-9+.-]*://[^/@:]*:(?!\\d+/)[^@]*@".r

  private lazy val table: Map[String, JsonNode] = {
    val stream = getClass.getResourceAsStream("/spark-statestore-options.json")
    if (stream == null) {
      throw new IllegalStateException("the jar lacks its option table, build it anew")
    }
    try new ObjectMapper().readTree(stream).elements().asScala.map(o => o.get("name").asText -> o).toMap
    finally stream.close()
  }

  /** Picks the backend's options out of Spark's configuration and checks each. */
  def parse(confs: Map[String, String]): BackendOptions = {
    val values = confs.collect { case (key, value) if key.startsWith(Prefix) => key.drop(Prefix.length) -> value.trim }
    values.foreach { case (name, value) => check(name, value) }
    new BackendOptions(values)
  }

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
      case "text" if Password.findPrefixOf(value).isDefined => throw new InvalidOptionException(
        s"'$Prefix$name' is a URL with a password in it. Spark shows its settings to whoever opens its UI: take the " +
          "password out. Credentials come from the environment of the executors, or from fsspec's configuration files.")
      case _ =>
    }
  }

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
    table.keys.find(_.equalsIgnoreCase(name.replace("_", ""))).map(k => s"Did you mean '$Prefix$k'? ").getOrElse("")

  private def refuse(name: String, value: String, form: String): Nothing =
    throw new InvalidOptionException(s"'$Prefix$name' is '$value', but it must be $form.")
}
