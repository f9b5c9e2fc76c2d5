package org.apache.spark.sql.statestore

import java.util.Properties

/** Version information that the build wrote into this jar. */
private[statestore] object BuildInfo {
  private val properties: Properties = {
    val buildProperties = new Properties
    val stream = getClass.getResourceAsStream("/spark-statestore.properties")
    if (stream != null) {
      try buildProperties.load(stream) finally stream.close()
    }
    buildProperties
  }

  /** The version of the Python package that this jar belongs to. */
  val version: String = properties.getProperty("version", "unknown")

  /** The Spark minor version that this jar was compiled against, as in "4.3". */
  val sparkMinor: String = properties.getProperty("spark", "unknown")

  /** The names of the options of `BackendOptions`. */
  def options: Seq[String] = properties.getProperty("options", "").split(',').toSeq

  /** Fails unless the running Spark is of the minor version that this jar was compiled against. */
  def requireSpark(running: String): Unit = {
    val minor = running.split('.').take(2).mkString(".")
    if (minor != sparkMinor) {
      throw new IncompatibleSparkException(
        s"this jar of spark-statestore $version is compiled against Spark $sparkMinor, but Spark " +
          s"$running is running, and Spark's state store interface differs between minor versions. " +
          "Use the jar that spark_statestore.jar_path() returns for the running Spark, or install a " +
          s"release of spark-statestore that ships a jar for Spark $minor.")
    }
  }
}
