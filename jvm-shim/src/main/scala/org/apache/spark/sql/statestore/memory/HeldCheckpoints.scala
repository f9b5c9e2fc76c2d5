package org.apache.spark.sql.statestore.memory

import java.util.{LinkedHashMap, TreeMap}

import scala.jdk.CollectionConverters._

import org.apache.spark.{SparkContext, SparkEnv}
import org.apache.spark.internal.Logging
import org.apache.spark.scheduler.{SparkListener, SparkListenerApplicationEnd}

/**
 * A version as it is handed over.
 *
 * @param id             in checkpoint format v2
 * @param attempt        the commit attempt
 * @param parentAttempt  the attempt that wrote the version before, None for a full snapshot
 * @param baseVersion    version of the full snapshot that its chain starts from
 * @param bytes          its metadata object, with its own changes inside
 */
private[statestore] final case class HeldVersion(
    version: Long,
    id: Option[String],
    attempt: String,
    parentAttempt: Option[String],
    baseVersion: Long,
    bytes: Array[Byte])

/** One metadata object: whose it is, and whether it is the one that counts for its version. */
private[statestore] final case class HeldName(
    version: Long, id: Option[String], attempt: String, isCurrent: Boolean) {

  /** Its path in the directory of the store, see docs/format.md. */
  def path: String =
    s"chk-$version${id.fold("")("_" + _)}/_metadata${if (isCurrent) "" else s".$attempt"}"
}

/**
 * What a version is made of.
 *
 * @param names  the objects, none if the version is not there
 * @param range  the oldest and the newest version of the store that are there, whichever they are
 */
private[statestore] final case class HeldChain(names: Seq[HeldName], range: Option[(Long, Long)]) {
  def toAnswer: AnyRef = (names.map(n => (n.version, n.id, n.attempt, n.isCurrent)).toArray, range)
}

private[statestore] object HeldChain {
  def fromAnswer(answer: Any): HeldChain = {
    val (names, range) =
      answer.asInstanceOf[(Array[(Long, Option[String], String, Boolean)], Option[(Long, Long)])]
    HeldChain(names.toSeq.map { case (version, id, attempt, isCurrent) =>
      HeldName(version, id, attempt, isCurrent)
    }, range)
  }
}

/**
 * The keeper itself, on the driver.
 *
 * Guarantees: a version that is found is whole, since none is taken without its parent and the
 * oldest are discarded first. In checkpoint format v1 the last attempt at a version counts, and
 * the others are kept beside it: a later version may build on the state inside any of them.
 */
private[statestore] final class HeldCheckpoints extends CheckpointKeeper with Logging {
  import HeldCheckpoints._

  private val stores = new java.util.HashMap[String, TreeMap[Key, Attempts]]
  private var total = 0L
  private var told = FirstToldBytes

  override def put(store: String, held: HeldVersion): Boolean = synchronized {
    val versions = stores.computeIfAbsent(store, _ => new TreeMap[Key, Attempts](order))
    val key = (held.version, held.id)
    val known = versions.get(key)
    if (known != null && known.held.containsKey(held.attempt)) {
      true
    } else if (!held.parentAttempt.forall(isWhole(versions, held.version - 1, _))) {
      false
    } else {
      val attempts = versions.computeIfAbsent(key, _ => new Attempts)
      attempts.held.put(held.attempt, held)
      attempts.current = held.attempt
      total += held.bytes.length
      tell()
      true
    }
  }

  override def chain(store: String, version: Long, id: Option[String]): HeldChain = synchronized {
    val versions = stores.getOrDefault(store, none)
    val range = if (versions.isEmpty) None else Some((versions.firstKey._1, versions.lastKey._1))
    val names = for {
      attempts <- Option(versions.get((version, id)))
      wanted = attempts.held.get(attempts.current)
      if hasVersion(versions, wanted.baseVersion)
    } yield {
      // Which attempts it builds on is in its bytes; all of them are few.
      val before = between(versions, wanted.baseVersion, version - 1).flatMap { case (key, others) =>
        others.held.keySet.asScala.map(a => HeldName(key._1, key._2, a, a == others.current))
      }
      before.toList :+ HeldName(version, id, wanted.attempt, isCurrent = true)
    }
    HeldChain(names.getOrElse(Nil), range)
  }

  override def fetch(store: String, name: HeldName): Option[Array[Byte]] = synchronized {
    for {
      attempts <- Option(stores.getOrDefault(store, none).get((name.version, name.id)))
      held <- Option(attempts.held.get(name.attempt))
    } yield held.bytes
  }

  override def discardBefore(
      store: String, newest: Long, id: Option[String], attempt: String, horizon: Long, most: Int): Int = synchronized {
    val versions = stores.getOrDefault(store, none)
    val accepted = versions.get((newest, id))
    if (accepted == null || accepted.current != attempt) {
      // Another instance took this store over, and cleans up after itself.
      0
    } else {
      val needed = versions.tailMap((horizon, None)).values.asScala.map(_.oldestBase)
      val first = needed.foldLeft(horizon)(_ min _)
      val expired = versions.headMap((first, None)).asScala.toList
      // A version goes as a whole: whether one is whole is told by its base's being there.
      val last = if (most > 0) expired.take(most).lastOption.map(_._1._1) else None
      val discarded = expired.takeWhile { case (key, _) => last.forall(key._1 <= _) }
      discarded.foreach { case (key, attempts) =>
        versions.remove(key)
        total -= attempts.bytes
      }
      discarded.map(_._2.held.size).sum
    }
  }

  /** Bytes of all objects. */
  def bytes: Long = synchronized(total)

  def clear(): Unit = synchronized {
    stores.clear()
    total = 0L
  }

  private def isWhole(versions: TreeMap[Key, Attempts], version: Long, attempt: String): Boolean =
    between(versions, version, version).exists { case (_, attempts) =>
      val parent = attempts.held.get(attempt)
      parent != null && hasVersion(versions, parent.baseVersion)
    }

  private def hasVersion(versions: TreeMap[Key, Attempts], version: Long): Boolean =
    between(versions, version, version).nonEmpty

  private def between(versions: TreeMap[Key, Attempts], first: Long, last: Long): Iterator[(Key, Attempts)] =
    versions.subMap((first, None), (last + 1, None)).entrySet.iterator.asScala.map(e => (e.getKey, e.getValue))

  // The driver's memory is bounded by what is retained; whoever runs out of it should have been told.
  private def tell(): Unit =
    if (total >= told) {
      logInfo(s"this driver keeps ${total >> 20} MiB of streaming state in ${stores.size} stores (storage=memory)")
      while (told <= total) told *= 2
    }
}

private[statestore] object HeldCheckpoints {
  private type Key = (Long, Option[String])

  // By version, and those without an id first.
  private val order: java.util.Comparator[Key] = implicitly[Ordering[Key]]

  private val none = new TreeMap[Key, Attempts](order)
  private val FirstToldBytes = 64L << 20

  /** The attempts at one version: in format v2, whose ids name attempts, there is one. */
  private final class Attempts {
    val held = new LinkedHashMap[String, HeldVersion]
    var current: String = _

    def oldestBase: Long = held.values.asScala.map(_.baseVersion).min

    def bytes: Long = held.values.asScala.map(_.bytes.length.toLong).sum
  }

  private var application: String = _
  private var held = new HeldCheckpoints

  /** What the running application keeps. Another application finds nothing of it. */
  def ofApplication(): HeldCheckpoints = synchronized {
    val running = Option(SparkEnv.get).fold("")(_.conf.get("spark.app.id", ""))
    if (running != application) {
      end()
      application = running
      // Without the plugin, which ends it otherwise.
      SparkContext.getActive.foreach(_.addSparkListener(new SparkListener {
        override def onApplicationEnd(event: SparkListenerApplicationEnd): Unit = endOf(running)
      }))
    }
    held
  }

  /** Lets everything go. */
  def end(): Unit = synchronized {
    held.clear()
    held = new HeldCheckpoints
    application = null
  }

  private def endOf(ended: String): Unit = synchronized {
    if (ended == application) end()
  }
}
