package org.apache.spark.sql.statestore.driver

import scala.util.control.NonFatal

import org.apache.spark.SparkContext
import org.apache.spark.deploy.SparkHadoopUtil
import org.apache.spark.internal.Logging
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.statestore.StateStoreExtensions
import org.apache.spark.sql.statestore.arrow.Rehearsal
import org.apache.spark.sql.statestore.backend.{Backend, PythonInterpreter, PythonWorkers}
import org.apache.spark.sql.statestore.provider.BackendOptions

/**
 * Preparation of an application's first batch, on a thread of its own while the query is built and planned.
 *
 * Guarantees: the session does not wait for it, and what fails here is done again, and reported, where it is needed.
 */
private[statestore] object SessionStart extends Logging {
  /** Begins, if the application has this store. */
  def begin(application: SparkContext): Unit =
    if (application.conf.getOption(SQLConf.STATE_STORE_PROVIDER_CLASS.key).exists(StateStoreExtensions.isOurs)) {
      if (application.isLocal) PythonWorkers.settleDaemon(application.conf)
      val thread = new Thread(() => try prepare(application) catch {
        case NonFatal(e) => logDebug("the state store was not prepared ahead of time", e)
      }, "state-store-session-start")
      thread.setDaemon(true)
      thread.start()
    }

  private def prepare(application: SparkContext): Unit = {
    val options = BackendOptions.parse(application.conf.getAll.toMap)
    val python = PythonInterpreter.chooseForFiles(options, SparkHadoopUtil.get.newConfiguration(application.conf))
    Backend.of(python).check(options, directories = false)
    // On a cluster the executors have the state.
    if (application.isLocal) Rehearsal.run()
  }
}
