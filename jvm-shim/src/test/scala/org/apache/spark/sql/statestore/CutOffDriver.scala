package org.apache.spark.sql.statestore

import java.util.{Map => JavaMap}

import com.codahale.metrics.MetricRegistry

import org.apache.spark.{SparkConf, SparkException}
import org.apache.spark.api.plugin.PluginContext
import org.apache.spark.resource.ResourceInformation
import org.apache.spark.sql.statestore.driver.DriverConnection

/** A driver that answers this JVM's stores with an error, as Spark does if the connection of an executor breaks. */
object CutOffDriver {
  private var connected: PluginContext = _

  def connect(reason: String): Unit = {
    connected = contextOf(reason)
    DriverConnection.connect(connected)
  }

  def disconnect(): Unit = DriverConnection.disconnect(connected)

  private def contextOf(reason: String): PluginContext = new PluginContext {
    override def ask(message: AnyRef): AnyRef = throw new SparkException(reason)
    override def send(message: AnyRef): Unit = throw new SparkException(reason)
    override def metricRegistry(): MetricRegistry = null
    override def conf(): SparkConf = null
    override def executorID(): String = "0"
    override def hostname(): String = "localhost"
    override def resources(): JavaMap[String, ResourceInformation] = null
  }
}
