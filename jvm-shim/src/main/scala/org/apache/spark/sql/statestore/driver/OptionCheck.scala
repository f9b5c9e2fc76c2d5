package org.apache.spark.sql.statestore.driver

import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.internal.Logging
import org.apache.spark.sql.statestore.{BackendException, InvalidOptionException}
import org.apache.spark.sql.statestore.backend.{Backend, PythonInterpreter}
import org.apache.spark.sql.statestore.provider.BackendOptions
import org.apache.spark.sql.{SparkSession, classic}

/**
 * Check of the options by a backend on the driver, once for each setting: names and values when a query is analysed,
 * interpreter and directories before the first task would fail.
 *
 * An unknown option, an invalid value and an unknown URL scheme are always refused. A missing interpreter or fsspec driver is
 * refused in local mode, where this process runs the tasks; on a cluster it is a warning, since the machine of the driver may
 * differ from those of the executors.
 */
private[statestore] object OptionCheck extends Logging {
  // With the application: the next one of this JVM may have another master.
  private val checked = ConcurrentHashMap.newKeySet[(String, String, BackendOptions.Values)]

  // Errors that do not depend on the machine.
  private val EverywhereWrong = Set("StorageURLError", "OptionError")
  private val WrongHere = Set("MissingDriverError", "Start")

  /**
   * Fails if an option is unknown or its value is invalid. What the driver's backend cannot tell, as one that cannot start,
   * `requireUsable` or the tasks report: a query without state needs no interpreter.
   */
  def requireValid(session: SparkSession, options: BackendOptions): Unit = {
    val setting = (session.sparkContext.applicationId, "", options.all)
    if (options.all.nonEmpty && !checked.contains(setting)) {
      try Backend.of(PythonInterpreter.chooseForFiles(options, hadoopConf(session))).check(options, directories = false) catch {
        case e: BackendException if EverywhereWrong(e.kind) => throw new InvalidOptionException(e.getMessage, e)
        case e: BackendException => logDebug("the options of the state store were not checked", e)
      }
      checked.add(setting)
    }
  }

  /** Fails if tasks with these options would fail. */
  def requireUsable(session: SparkSession, options: BackendOptions): Unit = {
    val python = PythonInterpreter.choose(options, hadoopConf(session))
    val setting = (session.sparkContext.applicationId, python, options.all)
    if (!checked.contains(setting)) {
      val isLocal = session.sparkContext.isLocal
      try {
        if (isLocal) Backend.of(python).check(options, directories = true)
        else Backend.temporary(python)(_.check(options, directories = true))
        checked.add(setting)
      } catch {
        case e: BackendException if EverywhereWrong(e.kind) || isLocal && WrongHere(e.kind) =>
          throw new InvalidOptionException(e.getMessage, e)
        case e: BackendException if WrongHere(e.kind) =>
          checked.add(setting)
          logWarning("the driver could not check the options of the state store, as the interpreter on its machine is " +
            s"not that of the executors, or lacks something. The query starts; its tasks may fail: ${e.getMessage}")
        // A transient failure, such as a killed backend: the tasks report it if it persists.
        case e: BackendException => logDebug("the options of the state store were not checked", e)
      }
    }
  }

  private def hadoopConf(session: SparkSession) = session match {
    case classicSession: classic.SparkSession => classicSession.sessionState.newHadoopConf()
    case _ => session.sparkContext.hadoopConfiguration
  }
}
