package org.apache.spark.sql.statestore.io

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.statestore.BackendOptions

/** Which Python runs the backend. */
private[statestore] object PythonInterpreter {
  def choose(options: BackendOptions, hadoopConf: Configuration): String =
    options.python
      .orElse(Option(hadoopConf.get("spark.pyspark.python")))
      .orElse(sys.env.get("PYSPARK_PYTHON"))
      .filter(_.nonEmpty)
      .getOrElse("python3")
}
