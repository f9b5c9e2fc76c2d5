package org.apache.spark.sql.statestore.backend

import java.io.File

import org.apache.hadoop.conf.Configuration

import org.apache.spark.{SparkContext, SparkEnv}
import org.apache.spark.sql.statestore.provider.BackendOptions

/**
 * Selection of the Python interpreter that runs the backend.
 *
 * A Hadoop configuration is made only if the options name no interpreter: that of a session is a copy of a thousand settings,
 * and the choice is made in each batch.
 */
private[statestore] object PythonInterpreter {
  def choose(options: BackendOptions, hadoopConf: => Configuration): String =
    options.python
      .orElse(Option(hadoopConf.get("spark.pyspark.python")))
      .orElse(sys.env.get("PYSPARK_PYTHON"))
      .filter(_.nonEmpty)
      .getOrElse("python3")

  /** Returns the interpreter for the files that Spark writes itself, mostly on the driver. */
  def chooseForFiles(options: BackendOptions, hadoopConf: => Configuration): String =
    options.driverPython.filter(_ => isOnDriver).getOrElse(choose(options, hadoopConf))

  private def isOnDriver: Boolean = SparkEnv.get == null || SparkEnv.get.executorId == SparkContext.DRIVER_IDENTIFIER

  /** Returns the path of a command on this process's PATH, or the command itself if it is not found. */
  def located(python: String): String =
    if (python.contains(File.separator)) {
      python
    } else {
      sys.env.getOrElse("PATH", "").split(File.pathSeparator).iterator
        .filter(_.nonEmpty).map(new File(_, python)).find(_.canExecute).fold(python)(_.getPath)
    }
}
