package org.apache.spark.sql.statestore.driver

import org.apache.spark.api.plugin.PluginContext

/** The connection of an executor's stores to the driver, through the plugin. */
private[statestore] object DriverConnection {
  @volatile private var plugin: Option[PluginContext] = None

  def connect(context: PluginContext): Unit = synchronized { plugin = Some(context) }

  /** Ends the connection, unless another application of this JVM has connected since. */
  def disconnect(context: PluginContext): Unit = synchronized(if (plugin.contains(context)) plugin = None)

  /** None on the driver, and where the plugin is not loaded. */
  def find(): Option[PluginContext] = plugin
}
