package org.apache.spark.sql.statestore.driver

import java.util.{Properties, UUID}
import java.util.concurrent.ConcurrentHashMap

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration

import org.apache.spark.SparkEnv
import org.apache.spark.internal.Logging
import org.apache.spark.scheduler.{ExecutorCacheTaskLocation, TaskLocation}
import org.apache.spark.sql.{SparkSession, classic}
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.exchange.Exchange
import org.apache.spark.sql.execution.streaming.state.{StateStoreCoordinatorRef, StateStoreProviderId}
import org.apache.spark.sql.statestore.StateStoreExtensions
import org.apache.spark.sql.statestore.compat.Since41
import org.apache.spark.sql.statestore.provider.{BackendOptions, PreparedStore, StoreKind}
import org.apache.spark.util.ThreadUtils

/**
 * Moves state between executors, so that each has its share: Spark runs a task where its state is, and leaves state where it is
 * when executors join.
 *
 * Guarantees: where state is decides the speed of a batch alone; a batch is the same on any executor. A partition moves between
 * two batches, once its new executor has loaded it, or at once if its old one is gone or about to leave. Of each operator at most
 * a quarter of the partitions is on the move at a time.
 */
private[statestore] object Rebalancer extends Logging {
  // Seconds between looks at the places of state that has its share.
  private final val LookSeconds = 10L

  // Part of an operator's partitions that is on the move at a time.
  private final val MovingPart = 4

  // Batches for which a partition that has moved, or could not be loaded, stays where it is; doubled each time.
  private final val StayingBatches = 10L

  private val queries = new ConcurrentHashMap[String, QueryPlaces]
  private val kinds = new ConcurrentHashMap[String, ConcurrentHashMap[(Long, String), StoreKind]]

  private lazy val threads = ThreadUtils.newDaemonCachedThreadPool("state-store-rebalance", 8)

  /** Takes note of the stores of a run, unless it has ended. */
  def opened(kind: StoreKind): Unit =
    if (queries.containsKey(kind.run)) {
      kinds.computeIfAbsent(kind.run, _ => new ConcurrentHashMap).putIfAbsent((kind.operator, kind.name), kind)
    }

  /** Moves the partitions of a query that are ready to, before the tasks of the batch that is planned. */
  def planned(session: SparkSession, batch: SparkPlan): Unit = {
    val context = session.sparkContext
    val options = BackendOptions.parse(session.conf.getAll)
    // The tasks of a batch in real-time mode leave no slot to load state in.
    if (!context.isLocal && options.rebalances && !options.isRealTimeMode) {
      try {
        groupsOf(batch).groupBy(_.run).foreach { case (run, groups) =>
          queries.computeIfAbsent(run, new QueryPlaces(session, _)).planned(groups)
        }
      } catch {
        case NonFatal(e) => logWarning("state is not moved between executors", e)
      }
    }
  }

  /** Has the places of state looked at now: an executor has joined or left. */
  def executorsChanged(): Unit = if (!queries.isEmpty) threads.execute(() => queries.values.forEach(_.look()))

  /** Forgets a run that has ended. */
  def ended(run: String): Unit = {
    queries.remove(run)
    kinds.remove(run)
  }

  /** Number of partitions of state on each executor as of the last look, of an active run. */
  def placesOf(run: String): Map[String, Int] = Option(queries.get(run)).fold(Map.empty[String, Int])(_.partitionsByExecutor)

  private def kindsOf(run: String, operator: Long): Seq[StoreKind] =
    Option(kinds.get(run)).fold(Seq.empty[StoreKind])(_.values.asScala.filter(_.operator == operator).toSeq.sortBy(_.name))

  /**
   * Operators whose tasks are the same: neither an exchange nor a union is between them.
   *
   * @param operators  the last one of the stage first: it decides where Spark runs the task
   */
  private final case class Group(run: String, operators: Seq[OperatorVersion]) {
    def partitions: Int = operators.head.partitions
  }

  /** An operator of a batch, with the checkpoint ids of its stores by partition in format v2. */
  private final case class OperatorVersion(
      root: String, operator: Long, partitions: Int, version: Long, ids: Option[Array[Array[String]]])

  private def groupsOf(batch: SparkPlan): Seq[Group] = {
    val stages = mutable.LinkedHashMap.empty[(String, Int), mutable.LinkedHashMap[Long, OperatorVersion]]
    var stageCount = 0
    // A join's task has a partition of each side; those of a union are other tasks.
    def isZip(plan: SparkPlan) = plan.children.size < 2 || plan.isInstanceOf[Since41.StatefulOperator]
    def visit(plan: SparkPlan, stage: Int): Unit = {
      plan match {
        case stateful: SparkPlan with Since41.StatefulOperator =>
          stateful.stateInfo.filter(_ => StateStoreExtensions.keepsState(stateful)).foreach { info =>
            stages.getOrElseUpdate((info.queryRunId.toString, stage), mutable.LinkedHashMap.empty).getOrElseUpdate(
              info.operatorId,
              OperatorVersion(
                info.checkpointLocation, info.operatorId, info.numPartitions, info.storeVersion, info.stateStoreCkptIds))
          }
        case _ =>
      }
      plan.children.foreach { child =>
        val isOther = plan.isInstanceOf[Exchange] || !isZip(plan)
        if (isOther) stageCount += 1
        visit(child, if (isOther) stageCount else stage)
      }
    }
    visit(batch, stageCount)
    stages.toSeq.map { case ((run, _), operators) => Group(run, operators.values.toSeq) }
  }

  /** The partitions of one run of a query. `planned` runs on the query's thread, a look on one of this object. */
  private final class QueryPlaces(session: SparkSession, run: String) {
    private val context = session.sparkContext
    private var groups = Seq.empty[Group]
    private var executors = Set.empty[String]
    private var lookedAt = 0L
    private var isLooking = false
    private var isBalanced = false
    // By the first operator of a group and partition.
    private val ready = mutable.Map.empty[(Long, Int), Place]
    private val moved = mutable.Map.empty[(Long, Int), Moved]
    @volatile var partitionsByExecutor = Map.empty[String, Int]

    private lazy val coordinator = StateStoreCoordinatorRef.forExecutor(SparkEnv.get)

    def planned(planned: Seq[Group]): Unit = {
      val isDue = synchronized {
        groups = planned
        val present = context.getExecutorIds().toSet
        move(present)
        val isChanged = present != executors
        executors = present
        isChanged || !isBalanced || System.nanoTime() - lookedAt > LookSeconds * 1000000000L
      }
      if (isDue) look()
    }

    // Spark's coordinator tells the scheduler, and the old executor that it may unload the stores.
    private def move(present: Set[String]): Unit = {
      for {
        group <- groups
        partition <- 0 until group.partitions
        place <- ready.remove((group.operators.head.operator, partition)) if present(place.executor)
      } {
        storesOf(group, partition).foreach { store =>
          coordinator.reportActiveInstance(providerId(store.kind, partition), place.host, place.executor, Nil)
        }
        stay(group, partition)
      }
      // Of operators that the batch does not have.
      ready.clear()
    }

    private def stay(group: Group, partition: Int): Unit = {
      val key = (group.operators.head.operator, partition)
      val times = moved.get(key).fold(0)(_.times)
      moved(key) = Moved(batch + (StayingBatches << math.min(times, 6)), times + 1)
    }

    private def batch: Long = groups.map(_.operators.head.version).maxOption.getOrElse(0L)

    // Of an operator that has fewer stores than its stage has partitions, as a limit has, those that exist.
    private def storesOf(group: Group, partition: Int): Seq[PreparedStore] = for {
      operator <- group.operators if operator.ids.forall(partition < _.length)
      kind <- kindsOf(run, operator.operator) if kind.root == operator.root && placeOf(kind, partition).isDefined
    } yield PreparedStore(kind, partition, operator.version, operator.ids.map(ids => ids(partition)(JoinStores.indexOf(kind.name))))

    def look(): Unit = if (beginLook()) {
      threads.execute { () =>
        try {
          // Those of the query's thread, which may have created this one.
          context.setLocalProperties(new Properties)
          lookNow()
        } catch {
          case NonFatal(e) if !context.isStopped => logWarning(s"the state of the run $run is not moved between executors", e)
          case NonFatal(_) =>
        } finally {
          synchronized {
            isLooking = false
            lookedAt = System.nanoTime()
          }
        }
      }
    }

    private def beginLook(): Boolean = synchronized {
      val begins = !isLooking && ready.isEmpty
      isLooking ||= begins
      begins
    }

    private def lookNow(): Unit = {
      val currentGroups = synchronized(groups)
      val places = currentGroups.flatMap(group => placesOf(group).map((group, _)))
      if (places.nonEmpty) rebalance(places, isWhole = places.size == currentGroups.size)
    }

    private def rebalance(places: Seq[(Group, IndexedSeq[Option[String]])], isWhole: Boolean): Unit = {
      val active = context.getExecutorIds().toSet
      val present = hostsOf(active)
      partitionsByExecutor = counted(places.flatMap(_._2.flatten))
      val elsewhere = queries.asScala.toSeq.filter(_._1 != run).flatMap(_._2.partitionsByExecutor)
      val moves = places.flatMap { case (group, groupPlaces) =>
        val operator = group.operators.head.operator
        val here = counted(places.filter(_._1 ne group).flatMap(_._2.flatten)).toSeq
        val otherPartitions = (elsewhere ++ here).groupMapReduce(_._1)(_._2)(_ + _)
        // An executor whose host is unknown for a moment keeps what it has.
        val byPartition = groupPlaces.map(_.filter(place => present.contains(place) || !active(place)))
        val isMovable = (partition: Int) => synchronized(moved.get((operator, partition)).forall(_.until <= batch))
        PartitionMoves.due(
          byPartition, present.keys.toSeq, otherPartitions, isMovable,
          math.max(1, math.ceil(group.partitions.toDouble / MovingPart).toInt),
          s"$run/$operator".hashCode)
          .map(move => (group, move, byPartition(move.partition).forall(present.contains)))
      }
      synchronized { isBalanced = isWhole && moves.isEmpty }
      val (waiting, urgent) = moves.partition(_._3)
      urgent.foreach { case (group, move, _) => setReady(group, move, present) }
      val isActive = queries.get(run) eq this
      if (waiting.nonEmpty && isActive) {
        prepare(waiting.map { case (group, move, _) => (group, move) }, present)
      }
    }

    // The executor of each partition; None if an operator's stores are not known yet.
    private def placesOf(group: Group): Option[IndexedSeq[Option[String]]] = {
      val operator = group.operators.head
      kindsOf(run, operator.operator).find(_.root == operator.root).map { kind =>
        (0 until operator.partitions).map(placeOf(kind, _))
      }
    }

    private def placeOf(kind: StoreKind, partition: Int): Option[String] =
      coordinator.getLocation(providerId(kind, partition)).map(TaskLocation(_)).collect {
        case place: ExecutorCacheTaskLocation => place.executorId
      }

    private def providerId(kind: StoreKind, partition: Int): StateStoreProviderId =
      StateStoreProviderId(kind.id(partition), UUID.fromString(run))

    private def counted(executors: Seq[String]): Map[String, Int] = executors.groupMapReduce(identity)(_ => 1)(_ + _)

    // Host by executor, of those that may get tasks.
    private def hostsOf(active: Set[String]): Map[String, String] = {
      val blocks = SparkEnv.get.blockManager
      blocks.master.getPeers(blocks.blockManagerId).filter(peer => active(peer.executorId))
        .map(peer => peer.executorId -> peer.host).toMap
    }

    private def prepare(moves: Seq[(Group, PartitionMove)], hosts: Map[String, String]): Unit = {
      // A task for each executor, which has a core less meanwhile.
      val byExecutor = moves.groupBy(_._2.executor).toSeq
      val preparations = byExecutor.map { case (executor, executorMoves) =>
        Preparation(Place(hosts(executor), executor), executorMoves.map { case (group, move) => storesOf(group, move.partition) })
      }
      val loaded = StatePreparation.run(context, hadoopConf, run, preparations)
      val results = byExecutor.zip(loaded).flatMap { case ((_, executorMoves), loaded) => executorMoves.zip(loaded) }
      val (ready, failed) = results.partition(_._2)
      ready.foreach { case ((group, move), _) => setReady(group, move, hosts) }
      synchronized(failed.foreach { case ((group, move), _) => stay(group, move.partition) })
      logInfo(s"${ready.size} of ${moves.size} partitions of the run $run are loaded on executors that have less than their " +
        "share of its state, and move there with the next batch")
    }

    private def hadoopConf: Configuration = session match {
      case classicSession: classic.SparkSession => classicSession.sessionState.newHadoopConf()
      case _ => context.hadoopConfiguration
    }

    private def setReady(group: Group, move: PartitionMove, hosts: Map[String, String]): Unit = synchronized {
      ready((group.operators.head.operator, move.partition)) = Place(hosts(move.executor), move.executor)
    }
  }

  /** @param until  the batch from which on it may move again */
  private final case class Moved(until: Long, times: Int)

  /** The stores of a partition of a join, in the order in which Spark's logs have their checkpoint ids. */
  private object JoinStores {
    private val names = Seq("left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues", "right-keyWithIndexToValue")

    def indexOf(name: String): Int = math.max(0, names.indexOf(name))
  }
}

/** An executor, as Spark's scheduler names it. */
private[statestore] final case class Place(host: String, executor: String)
