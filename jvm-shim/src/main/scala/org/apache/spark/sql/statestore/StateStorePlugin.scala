package org.apache.spark.sql.statestore

import java.util

import scala.util.control.NonFatal

import org.apache.spark.SparkContext
import org.apache.spark.api.plugin.{DriverPlugin, ExecutorPlugin, PluginContext, SparkPlugin}
import org.apache.spark.deploy.SparkHadoopUtil
import org.apache.spark.internal.Logging
import org.apache.spark.sql.statestore.arrow.Rehearsal
import org.apache.spark.sql.statestore.backend.{Backend, BackendMetrics, PythonInterpreter, PythonWorkers}
import org.apache.spark.sql.statestore.driver.{DriverCheckpoints, DriverConnection, DriverMessage, QueryMetrics,
  QueryMonitor, StoreMessage}
import org.apache.spark.sql.statestore.provider.{Background, BackendOptions}

/**
 * Spark plugin, loaded through `spark.plugins`: starts and stops each executor's backend with the
 * executor, so that the first batch does not wait for it. The options must be part of the session's
 * initial configuration. Python workers get the settings of `PythonWorkers`. On the driver it serves the
 * requests of executors whose checkpoints are on the driver, see `DriverCheckpointStore`, and takes the commits that their tasks hand over, see `HandedOverCommits`. Both register
 * their figures with Spark's metrics system, see `BackendMetrics` and `QueryMetrics`.
 *
 * Without it a backend starts on first use and ends with its session or its JVM, and memory storage
 * without a directory and `commit=batch` work in local mode only.
 */
class StateStorePlugin extends SparkPlugin {
  override def driverPlugin(): DriverPlugin = new DriverPlugin {
    private var application: SparkContext = _

    override def init(context: SparkContext, plugins: PluginContext): util.Map[String, String] = {
      application = context
      util.Map.of()
    }

    override def registerMetrics(id: String, plugins: PluginContext): Unit = {
      val monitor = QueryMonitor.of(application)
      monitor.register(new QueryMetrics(plugins.metricRegistry, monitor))
      // In local mode the executor's part of the plugin does, in the same JVM.
      if (!application.isLocal) BackendMetrics.register(plugins.metricRegistry)
    }

    override def receive(message: Any): AnyRef = message match {
      case request: DriverMessage => request.answer(DriverCheckpoints.ofApplication()).asInstanceOf[AnyRef]
      case request: StoreMessage => request.answer().asInstanceOf[AnyRef]
      case _ => throw new IllegalArgumentException(
        s"the state store's plugin received an unexpected message of ${message.getClass.getName}")
    }

    override def shutdown(): Unit = {
      DriverCheckpoints.end()
      Backend.stopAll()
    }
  }

  override def executorPlugin(): ExecutorPlugin = new ExecutorPlugin with Logging {
    private var connected: PluginContext = _

    override def init(context: PluginContext, extra: util.Map[String, String]): Unit = {
      connected = context
      DriverConnection.connect(context)
      BackendMetrics.register(context.metricRegistry)
      // In local mode `SessionStart` does.
      if (context.executorID != SparkContext.DRIVER_IDENTIFIER) {
        PythonWorkers.settle(context.conf)
        Background.submit(() => Rehearsal.run())
      }
      try {
        val options = BackendOptions.parse(context.conf.getAll.toMap)
        Backend.of(PythonInterpreter.choose(options, SparkHadoopUtil.get.newConfiguration(context.conf)))
          .prestart()
      } catch {
        case NonFatal(e) => logWarning("the state store backend was not prestarted", e)
      }
    }

    // In local mode the driver does not wait for it: the next application of the JVM may have begun.
    override def shutdown(): Unit = if (connected != null) {
      DriverConnection.disconnect(connected)
      if (connected.executorID != SparkContext.DRIVER_IDENTIFIER) Backend.stopAll()
    }
  }
}
