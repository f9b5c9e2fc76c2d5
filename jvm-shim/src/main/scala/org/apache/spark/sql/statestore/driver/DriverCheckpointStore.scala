package org.apache.spark.sql.statestore.driver

import scala.util.control.NonFatal

import org.apache.spark.{SparkConf, SparkContext, SparkEnv}
import org.apache.spark.api.plugin.PluginContext
import org.apache.spark.sql.statestore.{BackendException, Errors, MissingPluginException, StateStorePlugin}
import org.apache.spark.util.RpcUtils

/**
 * Checkpoint store on the driver for memory storage without a directory: it holds metadata objects with
 * the state inside. Flink's task managers acknowledge such handles to the job manager; here executors
 * do so to the driver.
 *
 * A store is identified by a text. Thread-safe.
 */
private[statestore] trait DriverCheckpointStore {
  /**
   * Stores a version; when this returns true, every executor finds it. Idempotent for an attempt. False, and
   * nothing is stored, if the version's parent is missing.
   */
  def put(store: String, driverVersion: DriverVersion): Boolean

  /** Returns the objects of a version; none if it is not complete. */
  def chain(store: String, version: Long, id: Option[String]): DriverChain

  /** Returns one object, None if it was discarded. */
  def fetch(store: String, name: DriverVersionName): Option[Array[Byte]]

  /**
   * Discards the versions before `horizon` that none from there on needs, oldest first and about `most`
   * of them (0 or less: all), unless another attempt than `attemptId` has taken the version `newest`
   * over. Returns the number of objects discarded.
   */
  def discardBefore(
      store: String, newest: Long, id: Option[String], attemptId: String, horizon: Long, most: Int): Int
}

private[statestore] object DriverCheckpointStore {
  private val Plugin = classOf[StateStorePlugin].getName
  /** The configuration that loads the plugin. */
  val PluginLine: String = s"spark.plugins=$Plugin"

  /** The alternative to the plugin, for messages. */
  val Instead: String = s"set spark.sql.streaming.stateStore.backend.checkpointsDir, or " +
    "spark.sql.streaming.stateStore.backend.storage=filesystem, before the query starts"

  /** Returns the store of this JVM if it is the driver, else a client of the driver's plugin. */
  def find(): DriverCheckpointStore = {
    val env = SparkEnv.get
    if (env == null || env.executorId == SparkContext.DRIVER_IDENTIFIER) DriverCheckpoints.ofApplication()
    else DriverConnection.find().fold[DriverCheckpointStore](refuse(env.conf))(new RpcDriverCheckpointStore(_))
  }

  /** Fails if the executors of an application could not reach its driver, however many there are now. */
  def require(context: SparkContext): Unit =
    if (!context.isLocal && !hasPlugin(context.getConf)) refuse(context.getConf)

  private def hasPlugin(conf: SparkConf): Boolean =
    conf.get("spark.plugins", "").split(',').exists(_.trim == Plugin)

  private def refuse(conf: SparkConf): Nothing = {
    val why =
      if (hasPlugin(conf)) {
        "through a plugin; spark.plugins names it, but this executor's copy of its classes has not been started, as " +
          "where a session loads classes of its own. Put the jar on spark.executor.extraClassPath"
      } else {
        "through a plugin that this application has not loaded. Its executors are processes of their own " +
          s"(spark.master=${conf.get("spark.master", "unknown")}); this applies to a single executor too, as Spark may " +
          s"add or replace executors at any time. Start the application with $PluginLine (behind a comma if there " +
          "are other plugins), which spark_statestore.configure(builder, storage=\"memory\") adds by itself"
      }
    throw new MissingPluginException(
      "storage=memory without checkpointsDir keeps the state of all executors on the driver, to which they send it " +
        s"$why, or $Instead. Nothing was changed.")
  }
}

/** Client of the driver's plugin, which sends one object per message. */
private[statestore] final class RpcDriverCheckpointStore(driver: PluginContext) extends DriverCheckpointStore {
  import DriverCheckpointStore._

  private val mostBytes = RpcUtils.maxMessageSizeBytes(driver.conf)

  override def put(store: String, driverVersion: DriverVersion): Boolean = {
    if (driverVersion.bytes.length > mostBytes) {
      throw new BackendException("StateTooLargeError",
        s"version ${driverVersion.version} of $store takes ${driverVersion.bytes.length} bytes, and is sent to the driver in one " +
          s"message of at most $mostBytes. Raise spark.rpc.message.maxSize (in MiB) when the application " +
          s"starts, use more shuffle partitions, or $Instead.")
    }
    ask(s"version ${driverVersion.version} of $store", PutVersion(store, driverVersion)).asInstanceOf[Boolean]
  }

  override def chain(store: String, version: Long, id: Option[String]): DriverChain =
    DriverChain.fromAnswer(ask(s"version $version of $store", FindVersion(store, version, id)))

  override def fetch(store: String, name: DriverVersionName): Option[Array[Byte]] =
    Option(ask(s"version ${name.version} of $store", FetchObject(store, name)).asInstanceOf[Array[Byte]])

  override def discardBefore(
      store: String, newest: Long, id: Option[String], attemptId: String, horizon: Long, most: Int): Int =
    ask(s"version $newest of $store", DiscardVersions(store, newest, id, attemptId, horizon, most)).asInstanceOf[Int]

  private def ask(subject: String, message: DriverMessage): Any =
    try driver.ask(message) catch {
      case NonFatal(e) =>
        throw new BackendException("Driver",
          s"the driver, which holds $subject, did not answer ${message.productPrefix}: ${reason(e)}. The driver " +
            s"answers through $PluginLine: check its log for a failure of the plugin. A retry sends the request again.",
          e)
    }

  private def reason(e: Throwable): String =
    Iterator.iterate(e)(_.getCause).takeWhile(_ != null).map(c => s"${c.getClass.getName}: ${Errors.clause(c)}")
      .take(5).mkString(", caused by ")
}
