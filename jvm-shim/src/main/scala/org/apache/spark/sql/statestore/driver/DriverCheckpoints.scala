package org.apache.spark.sql.statestore.driver

import java.util.{LinkedHashMap, TreeMap}

import scala.jdk.CollectionConverters._

import org.apache.spark.{SparkContext, SparkEnv}
import org.apache.spark.internal.Logging
import org.apache.spark.scheduler.{SparkListener, SparkListenerApplicationEnd}

/**
 * A version that an executor sends to the driver.
 *
 * @param id             checkpoint id, in checkpoint format v2
 * @param attemptId      id of the commit attempt
 * @param parentAttemptId  the attempt that wrote the version before, None for a full snapshot
 * @param baseVersion    version of the full snapshot that its chain starts from
 * @param bytes          its metadata object, with its own changes inside
 */
private[statestore] final case class DriverVersion(
    version: Long,
    id: Option[String],
    attemptId: String,
    parentAttemptId: Option[String],
    baseVersion: Long,
    bytes: Array[Byte])

/** Name of a metadata object, and whether it is the current one of its version. */
private[statestore] final case class DriverVersionName(
    version: Long, id: Option[String], attemptId: String, isCurrent: Boolean) {

  /** Its path in the directory of the store, see docs/format.md. */
  def path: String =
    s"chk-$version${id.fold("")("_" + _)}/_metadata${if (isCurrent) "" else s".$attemptId"}"
}

/**
 * The metadata objects of a version.
 *
 * @param names  the objects, none if the version is missing
 * @param range  oldest and newest version of the store on the driver
 */
private[statestore] final case class DriverChain(names: Seq[DriverVersionName], range: Option[(Long, Long)]) {
  def toAnswer: AnyRef = (names.map(n => (n.version, n.id, n.attemptId, n.isCurrent)).toArray, range)
}

private[statestore] object DriverChain {
  def fromAnswer(answer: Any): DriverChain = {
    val (names, range) =
      answer.asInstanceOf[(Array[(Long, Option[String], String, Boolean)], Option[(Long, Long)])]
    DriverChain(names.toSeq.map { case (version, id, attemptId, isCurrent) =>
      DriverVersionName(version, id, attemptId, isCurrent)
    }, range)
  }
}

/**
 * The checkpoint store of the running application, in the driver's memory.
 *
 * Guarantees: a version that is found is complete, since none is stored without its parent and the
 * oldest are discarded first. In checkpoint format v1 the last attempt at a version is the current one;
 * the others stay, since a later version may refer to the state inside of any of them.
 */
private[statestore] final class DriverCheckpoints extends DriverCheckpointStore with Logging {
  import DriverCheckpoints._

  private val stores = new java.util.HashMap[String, TreeMap[Key, Attempts]]
  private var total = 0L
  private var nextLogged = FirstLoggedBytes

  override def put(store: String, driverVersion: DriverVersion): Boolean = synchronized {
    val versions = stores.computeIfAbsent(store, _ => new TreeMap[Key, Attempts](order))
    val key = (driverVersion.version, driverVersion.id)
    val earlierAttempts = versions.get(key)
    if (earlierAttempts != null && earlierAttempts.byId.containsKey(driverVersion.attemptId)) {
      true
    } else if (!driverVersion.parentAttemptId.forall(isWhole(versions, driverVersion.version - 1, _))) {
      false
    } else {
      val attempts = versions.computeIfAbsent(key, _ => new Attempts)
      attempts.byId.put(driverVersion.attemptId, driverVersion)
      attempts.current = driverVersion.attemptId
      total += driverVersion.bytes.length
      logGrowth()
      true
    }
  }

  override def chain(store: String, version: Long, id: Option[String]): DriverChain = synchronized {
    val versions = stores.getOrDefault(store, none)
    val range = if (versions.isEmpty) None else Some((versions.firstKey._1, versions.lastKey._1))
    val names = for {
      attempts <- Option(versions.get((version, id)))
      currentVersion = attempts.byId.get(attempts.current)
      if hasVersion(versions, currentVersion.baseVersion)
    } yield {
      // The attempts that it refers to are named in its bytes only: all of them are listed.
      val before = between(versions, currentVersion.baseVersion, version - 1).flatMap { case (key, earlierAttempts) =>
        earlierAttempts.byId.keySet.asScala.map(a => DriverVersionName(key._1, key._2, a, a == earlierAttempts.current))
      }
      before.toList :+ DriverVersionName(version, id, currentVersion.attemptId, isCurrent = true)
    }
    DriverChain(names.getOrElse(Nil), range)
  }

  override def fetch(store: String, name: DriverVersionName): Option[Array[Byte]] = synchronized {
    for {
      attempts <- Option(stores.getOrDefault(store, none).get((name.version, name.id)))
      driverVersion <- Option(attempts.byId.get(name.attemptId))
    } yield driverVersion.bytes
  }

  override def discardBefore(
      store: String, newest: Long, id: Option[String], attemptId: String, horizon: Long, most: Int)
    : Int = synchronized {
    val versions = stores.getOrDefault(store, none)
    val current = versions.get((newest, id))
    if (current == null || current.current != attemptId) {
      // Another instance took this store over, and cleans up itself.
      0
    } else {
      val needed = versions.tailMap((horizon, None)).values.asScala.map(_.oldestBaseVersion)
      val first = needed.foldLeft(horizon)(_ min _)
      val expired = versions.headMap((first, None)).asScala.toList
      // All attempts of a version are discarded together: a version is complete if its base exists.
      val last = if (most > 0) expired.take(most).lastOption.map(_._1._1) else None
      val discarded = expired.takeWhile { case (key, _) => last.forall(key._1 <= _) }
      discarded.foreach { case (key, attempts) =>
        versions.remove(key)
        total -= attempts.bytes
      }
      discarded.map(_._2.byId.size).sum
    }
  }

  /** Bytes of all objects. */
  def bytes: Long = synchronized(total)

  def clear(): Unit = synchronized {
    stores.clear()
    total = 0L
  }

  private def isWhole(versions: TreeMap[Key, Attempts], version: Long, attemptId: String): Boolean =
    between(versions, version, version).exists { case (_, attempts) =>
      val parent = attempts.byId.get(attemptId)
      parent != null && hasVersion(versions, parent.baseVersion)
    }

  private def hasVersion(versions: TreeMap[Key, Attempts], version: Long): Boolean =
    between(versions, version, version).nonEmpty

  private def between(versions: TreeMap[Key, Attempts], first: Long, last: Long): Iterator[(Key, Attempts)] =
    versions.subMap((first, None), (last + 1, None)).entrySet.iterator.asScala.map(e => (e.getKey, e.getValue))

  // The retained versions take memory of the driver: logged each time that their size doubles.
  private def logGrowth(): Unit =
    if (total >= nextLogged) {
      logInfo(s"this driver holds ${total >> 20} MiB of streaming state of ${stores.size} stores (storage=memory)")
      while (nextLogged <= total) nextLogged *= 2
    }
}

private[statestore] object DriverCheckpoints {
  private type Key = (Long, Option[String])

  // By version, then by id.
  private val order: java.util.Comparator[Key] = implicitly[Ordering[Key]]

  private val none = new TreeMap[Key, Attempts](order)
  private val FirstLoggedBytes = 64L << 20

  /** The attempts at one version; in format v2, where the id is the attempt, there is one. */
  private final class Attempts {
    val byId = new LinkedHashMap[String, DriverVersion]
    var current: String = _

    def oldestBaseVersion: Long = byId.values.asScala.map(_.baseVersion).min

    def bytes: Long = byId.values.asScala.map(_.bytes.length.toLong).sum
  }

  private var application: String = _
  private var checkpoints = new DriverCheckpoints

  /** Returns the store of the running application; another application starts with an empty one. */
  def ofApplication(): DriverCheckpoints = synchronized {
    val running = Option(SparkEnv.get).fold("")(_.conf.get("spark.app.id", ""))
    if (running != application) {
      end()
      application = running
      // Needed without the plugin, which ends it otherwise.
      SparkContext.getActive.foreach(_.addSparkListener(new SparkListener {
        override def onApplicationEnd(event: SparkListenerApplicationEnd): Unit = endOf(running)
      }))
    }
    checkpoints
  }

  /** Discards everything. */
  def end(): Unit = synchronized {
    checkpoints.clear()
    checkpoints = new DriverCheckpoints
    application = null
  }

  private def endOf(ended: String): Unit = synchronized {
    if (ended == application) end()
  }
}
