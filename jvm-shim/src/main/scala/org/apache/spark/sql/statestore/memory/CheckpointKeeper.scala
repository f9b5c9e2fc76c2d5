package org.apache.spark.sql.statestore.memory

import scala.util.control.NonFatal

import org.apache.spark.{SparkConf, SparkContext, SparkEnv}
import org.apache.spark.api.plugin.PluginContext
import org.apache.spark.sql.statestore.{BackendException, MissingPluginException, StateStorePlugin}
import org.apache.spark.util.RpcUtils

/**
 * Keeps the metadata objects, with the state inside, of stores that have no other place: memory
 * storage without a directory. Flink's task managers acknowledge such handles to the job manager;
 * here executors do so to the driver.
 *
 * A store goes by a text that names its place and itself. Several executors may ask at once.
 */
private[statestore] trait CheckpointKeeper {
  /**
   * Keeps a version; once this returns true every executor finds it. An attempt that is known
   * changes nothing. False, and nothing is kept, if the version's parent is not kept.
   */
  def put(store: String, held: HeldVersion): Boolean

  /** What a version is made of; empty if not all of it is kept. */
  def chain(store: String, version: Long, id: Option[String]): HeldChain

  /** One object, None if it was discarded. */
  def fetch(store: String, name: HeldName): Option[Array[Byte]]

  /**
   * Discards the versions before `horizon` that none from there on needs, oldest first and about `most`
   * of them (0 or less: all), unless another attempt than `attempt` has taken the version `newest`
   * over. Returns the number of objects discarded.
   */
  def discardBefore(
      store: String, newest: Long, id: Option[String], attempt: String, horizon: Long, most: Int): Int
}

private[statestore] object CheckpointKeeper {
  private val Plugin = classOf[StateStorePlugin].getName
  @volatile private var plugin: Option[PluginContext] = None

  /** The line that an application lacks. */
  val PluginLine: String = s"spark.plugins=$Plugin"

  /** What to set instead. */
  val Instead: String = s"set spark.sql.streaming.stateStore.backend.checkpointsDir, or " +
    "spark.sql.streaming.stateStore.backend.storage=filesystem, before the query starts"

  /** The keeper that this JVM reaches: itself if it is the driver, else the driver's plugin. */
  def find(): CheckpointKeeper = {
    val env = SparkEnv.get
    if (env == null || env.executorId == SparkContext.DRIVER_IDENTIFIER) HeldCheckpoints.ofApplication()
    else plugin.fold[CheckpointKeeper](refuse(env.conf))(new RemoteKeeper(_))
  }

  /** Lets the stores of this executor reach the driver. */
  def connect(context: PluginContext): Unit = plugin = Some(context)

  def disconnect(): Unit = plugin = None

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
          s"(spark.master=${conf.get("spark.master", "unknown")}); that goes for a single one too, since another may " +
          s"come, or take its place, at any time. Start the application with $PluginLine (behind a comma if there " +
          "are other plugins), which spark_statestore.configure(builder, storage=\"memory\") adds by itself"
      }
    throw new MissingPluginException(
      "storage=memory without checkpointsDir keeps the state of all executors on the driver, to which they hand it " +
        s"$why, or $Instead. Nothing was changed.")
  }
}

/** Asks the plugin on the driver, one object in each message. */
private[memory] final class RemoteKeeper(driver: PluginContext) extends CheckpointKeeper {
  import CheckpointKeeper._

  private val mostBytes = RpcUtils.maxMessageSizeBytes(driver.conf)

  override def put(store: String, held: HeldVersion): Boolean = {
    if (held.bytes.length > mostBytes) {
      throw new BackendException("StateTooLargeError",
        s"version ${held.version} of $store takes ${held.bytes.length} bytes, and is handed to the driver in one " +
          s"message, which may have $mostBytes. Raise spark.rpc.message.maxSize (in MiB) when the application " +
          s"starts, use more shuffle partitions, or $Instead.")
    }
    ask(s"version ${held.version} of $store", KeepVersion(store, held)).asInstanceOf[Boolean]
  }

  override def chain(store: String, version: Long, id: Option[String]): HeldChain =
    HeldChain.fromAnswer(ask(s"version $version of $store", FindVersion(store, version, id)))

  override def fetch(store: String, name: HeldName): Option[Array[Byte]] =
    Option(ask(s"version ${name.version} of $store", FetchObject(store, name)).asInstanceOf[Array[Byte]])

  override def discardBefore(
      store: String, newest: Long, id: Option[String], attempt: String, horizon: Long, most: Int): Int =
    ask(s"version $newest of $store", DiscardVersions(store, newest, id, attempt, horizon, most)).asInstanceOf[Int]

  private def ask(what: String, message: KeeperMessage): Any =
    try driver.ask(message) catch {
      case NonFatal(e) =>
        throw new BackendException("Driver",
          s"$what is kept on the driver, which could not be asked (${message.productPrefix}): ${reason(e)}. The " +
            s"driver answers through $PluginLine: see whether its log says that the plugin failed. A retry asks again.",
          e)
    }

  private def reason(e: Throwable): String =
    Iterator.iterate(e)(_.getCause).takeWhile(_ != null).map(c => s"${c.getClass.getName}: ${c.getMessage}")
      .take(5).mkString(", caused by ")
}
