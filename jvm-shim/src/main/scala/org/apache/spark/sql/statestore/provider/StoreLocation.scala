package org.apache.spark.sql.statestore.provider

import java.nio.charset.StandardCharsets

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.SparkEnv
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.statestore.Errors
import org.apache.spark.sql.statestore.backend.CheckpointClient

/** Location of a store's files, as the URL that the backend uses. */
private[statestore] object StoreLocation {
  /** Name of the directory of Spark's commit log. */
  final val CommitLog = "commits"

  /** Name of the directory of Spark's log of offsets. */
  final val OffsetLog = "offsets"

  def rootOf(id: StateStoreId, options: BackendOptions, hadoopConf: Configuration): String = {
    val ownLocation = id.storeCheckpointLocation()
    val elsewhere = options.checkpointsDir.isDefined || options.isMemory
    // The state data source counts partitions by these directories.
    if (elsewhere) ownLocation.getFileSystem(hadoopConf).mkdirs(ownLocation)
    options.checkpointsDir match {
      case None => ownLocation.toString
      case Some(base) =>
        s"${base.stripSuffix("/")}/${queryId(id, hadoopConf)}/${belowState(id)}"
    }
  }

  /** Describes an instance of a store to the backend, which keeps what it knows of the instance. */
  def describe(
      instance: String, id: StateStoreId, options: BackendOptions, hadoopConf: Configuration, runId: String,
      minDeltasForSnapshot: Int): ObjectNode = {
    val store = CheckpointClient.mapper.createObjectNode()
    store.put("instance", instance)
    store.put("root", rootOf(id, options, hadoopConf))
    store.put("operator", id.operatorId)
    store.put("partition", id.partitionId)
    store.put("name", id.storeName)
    store.put("commits", commitLog(id))
    store.put("run", runId)
    store.put("minDeltasForSnapshot", minDeltasForSnapshot)
    store.put("localDirectory", localDirectory)
    options.addTo(store.putObject("options"))
    store
  }

  // Spark's local directory, one that outlives the application where there is one: below it a worker makes others for each.
  private lazy val localDirectory: String = {
    val directories = sys.env.get("SPARK_LOCAL_DIRS").orElse(sys.env.get("LOCAL_DIRS"))
    val configured = Option(SparkEnv.get).flatMap(_.conf.getOption("spark.local.dir"))
    val first = directories.orElse(configured).getOrElse(System.getProperty("java.io.tmpdir")).split(",").head.trim
    new java.io.File(first).getAbsolutePath
  }

  /** Returns the directory of a store below the state directory of its query. */
  def belowState(id: StateStoreId): String = {
    val store = if (id.storeName == StateStoreId.DEFAULT_STORE_NAME) "" else s"/${id.storeName}"
    s"${id.operatorId}/${id.partitionId}$store"
  }

  /** True unless state is in files that the operating system mounts. */
  def isRemote(id: StateStoreId, options: BackendOptions): Boolean = {
    val url = options.checkpointsDir.getOrElse(id.checkpointRootLocation)
    url.contains("://") && !url.startsWith("file:")
  }

  /** Returns the directory of Spark's commit log of the store's query. */
  def commitLog(id: StateStoreId): String =
    new Path(new Path(id.checkpointRootLocation).getParent, CommitLog).toString

  // The id of the query, from Spark's metadata file beside the state; the counterpart of Flink's job id.
  private def queryId(id: StateStoreId, hadoopConf: Configuration): String = {
    val file = new Path(new Path(id.checkpointRootLocation).getParent, "metadata")
    val fs = file.getFileSystem(hadoopConf)
    val text = try {
      val stream = fs.open(file)
      try new String(stream.readAllBytes(), StandardCharsets.UTF_8) finally stream.close()
    } catch {
      case e: java.io.FileNotFoundException =>
        throw new java.io.FileNotFoundException(
          s"the option checkpointsDir stores state by the id of its query, but $file, where Spark writes " +
            s"that id, does not exist: ${Errors.clause(e)}. Point the query at its own checkpointLocation.")
    }
    val queryId = CheckpointClient.mapper.readTree(text).path("id").asText
    // It becomes a part of a path.
    if (!queryId.matches("[0-9A-Za-z-]{1,64}")) {
      throw new IllegalStateException(
        s"$file does not contain the id of a query: it is damaged. Restore it from a backup; nothing was changed.")
    }
    queryId.replace("-", "")
  }
}
