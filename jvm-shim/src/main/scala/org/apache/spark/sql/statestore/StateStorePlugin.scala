package org.apache.spark.sql.statestore

import java.util

import scala.util.control.NonFatal

import org.apache.spark.SparkContext
import org.apache.spark.api.plugin.{DriverPlugin, ExecutorPlugin, PluginContext, SparkPlugin}
import org.apache.spark.deploy.SparkHadoopUtil
import org.apache.spark.internal.Logging
import org.apache.spark.sql.statestore.io.{Backend, PythonInterpreter}
import org.apache.spark.sql.statestore.memory.{CheckpointKeeper, HeldCheckpoints, KeeperMessage}

/**
 * Loaded through `spark.plugins`: starts each executor's backend with the executor, so that the
 * first batch does not wait for it, and stops it with the executor. The options must then be part
 * of the session's initial configuration. On the driver it answers executors whose state the
 * driver keeps, see `CheckpointKeeper`.
 *
 * Without it a backend starts when it is first needed and ends with its session or its JVM, and
 * memory storage without a directory works in local mode alone.
 */
class StateStorePlugin extends SparkPlugin {
  override def driverPlugin(): DriverPlugin = new DriverPlugin {
    override def init(context: SparkContext, plugins: PluginContext): util.Map[String, String] = {
      BackendOptions.parse(context.getConf.getAll.toMap)
      util.Map.of()
    }

    override def receive(message: Any): AnyRef = message match {
      case asked: KeeperMessage => asked.answer(HeldCheckpoints.ofApplication()).asInstanceOf[AnyRef]
      case other => throw new IllegalArgumentException(s"the state store's plugin was sent ${other.getClass.getName}")
    }

    override def shutdown(): Unit = HeldCheckpoints.end()
  }

  override def executorPlugin(): ExecutorPlugin = new ExecutorPlugin with Logging {
    override def init(context: PluginContext, extra: util.Map[String, String]): Unit = {
      CheckpointKeeper.connect(context)
      try {
        val options = BackendOptions.parse(context.conf.getAll.toMap)
        Backend.of(PythonInterpreter.choose(options, SparkHadoopUtil.get.newConfiguration(context.conf)))
          .prestart()
      } catch {
        case NonFatal(e) => logWarning("the state store backend was not started ahead of time", e)
      }
    }

    override def shutdown(): Unit = {
      CheckpointKeeper.disconnect()
      Backend.stopAll()
    }
  }
}
