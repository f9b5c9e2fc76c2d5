package org.apache.spark.sql.statestore.convert

import java.util.concurrent.atomic.AtomicLong

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.statestore.backend.CheckpointClient
import org.apache.spark.util.LongAccumulator

/**
 * Copy of the stores of a stopped query from one provider to another, as Spark jobs with a task for each store and
 * partition. Python calls it, see spark_statestore/conversion.
 */
final class StateConversion(session: SparkSession, description: String) {
  import StateConversion._

  // Starts the coordinator of state stores, which Spark 4.0 and 4.1 ask even to read.
  session.streams

  private val node = CheckpointClient.mapper.readTree(description)
  private val version = node.path("version").asLong
  private val rows = session.sparkContext.longAccumulator
  private val bytes = session.sparkContext.longAccumulator
  private val tasks = session.sparkContext.longAccumulator
  private val total = new AtomicLong

  /** Copies all stores; returns their checkpoint ids as JSON, empty in Spark's checkpoint format v1. */
  def copy(): String = {
    val (from, to) = (side("source"), side("target"))
    val (rows, bytes, tasks) = (this.rows, this.bytes, this.tasks)
    val storeIds = run(stores("source").flatMap(all)) { case (store, partition) =>
      val id = from.read(store, partition, store.id(partition)) { (source, families) =>
        to.write(store, partition, families) { target =>
          families.foreach { family =>
            val progress = new Progress(rows, bytes)
            val pairs = StoreAccess.pairs(source, family)
            while (pairs.hasNext) {
              val pair = pairs.next()
              if (family.hasLists) target.merge(pair.key, pair.value, family.name)
              else target.put(pair.key, pair.value, family.name)
              progress.add(pair.key.getSizeInBytes + pair.value.getSizeInBytes)
            }
            progress.flush()
          }
        }
      }
      tasks.add(1)
      (store.operator, store.name, partition, id.getOrElse(""))
    }
    json(storeIds.map { case (operator, name, partition, id) =>
      Map("operator" -> operator, "store" -> name, "partition" -> partition, "id" -> id)
    })
  }

  /** Reads all rows of one side, `source` or `target`; returns their digest by store, partition and family as JSON. */
  def digest(sideName: String): String = {
    val storeSide = side(sideName)
    val (rows, bytes, tasks) = (this.rows, this.bytes, this.tasks)
    val digestsByStore = run(stores(sideName).flatMap(all)) { case (store, partition) =>
      val digests = storeSide.read(store, partition, store.id(partition)) { (source, families) =>
        families.map { family =>
          val progress = new Progress(rows, bytes)
          val digest = new RowDigest(family.hasLists)
          val pairs = StoreAccess.pairs(source, family)
          while (pairs.hasNext) {
            val pair = pairs.next()
            digest.add(pair.key, pair.value)
            progress.add(pair.key.getSizeInBytes + pair.value.getSizeInBytes)
          }
          progress.flush()
          Map[String, Any]("operator" -> store.operator, "store" -> store.name, "partition" -> partition,
            "family" -> family.name, "keys" -> digest.keys, "values" -> digest.values, "bytes" -> digest.bytes,
            "sum" -> hex(digest.sum), "ordered" -> (if (family.isOrdered) hex(digest.ordered) else ""))
        }
      }
      tasks.add(1)
      digests
    }
    json(digestsByStore.flatten)
  }

  /** Returns the numbers of tasks that ended and of all, and of rows and bytes that those processed. */
  def progress(): Array[Long] = Array(tasks.value, total.get, rows.value, bytes.value)

  private def side(sideName: String): StoreSide = StoreSide(session, node.path(sideName), version)

  private def stores(sideName: String): Seq[StoreSpec] =
    node.path(sideName).path("stores").elements().asScala.map(StoreSpec.read).toSeq

  private def run[T: scala.reflect.ClassTag](items: Seq[(StoreSpec, Int)])(body: ((StoreSpec, Int)) => T): Seq[T] = {
    tasks.reset()
    rows.reset()
    bytes.reset()
    total.set(items.length)
    if (items.isEmpty) Nil
    else session.sparkContext.parallelize(items, items.length).map(body).collect().toSeq
  }
}

private object StateConversion {
  private def all(store: StoreSpec): Seq[(StoreSpec, Int)] = (0 until store.partitions).map((store, _))

  private def hex(value: Long): String = f"$value%016x"

  private def json(rows: Seq[Map[String, Any]]): String =
    CheckpointClient.mapper.writeValueAsString(rows.map(_.asJava).asJava)

  // Adds to the accumulators now and then, as that is slow.
  private final class Progress(rows: LongAccumulator, bytes: LongAccumulator) {
    private var newRows = 0L
    private var newBytes = 0L

    def add(size: Long): Unit = {
      newRows += 1
      newBytes += size
      if (newRows == Chunk) flush()
    }

    def flush(): Unit = {
      rows.add(newRows)
      bytes.add(newBytes)
      newRows = 0
      newBytes = 0
    }
  }

  private final val Chunk = 10000
}
