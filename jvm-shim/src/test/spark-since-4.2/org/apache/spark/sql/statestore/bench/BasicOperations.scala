package org.apache.spark.sql.statestore.bench

import java.util.{Map => JMap}

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.{IntegerType, StructField, StructType, TimestampType}

/**
 * Single operations on a store of any provider, on the rows of Spark's StateStoreBasicOperationsBenchmark: keys of an integer
 * at random and a timestamp, values of an integer, put in an order at random. Each run is on the committed version, and is
 * aborted. Its result is verified behind the clock. Times are in nanoseconds.
 *
 * @param rows    rows of the committed version
 * @param values  values of each key; with more than one, the store has several values per key
 */
class BasicOperations(
    providerClass: String, checkpointRoot: String, confs: JMap[String, String], rows: Int, values: Int) {
  import BasicOperations._

  private val random = new java.util.SplittableRandom(rows)
  private val provider = StoreBenchmark.openProvider(providerClass, checkpointRoot, 0, confs,
    NoPrefixKeyStateEncoderSpec(KeySchema), multiple = values > 1, KeySchema, ValueSchema)
  private val present = Array.tabulate(rows)(row => keyOf(row * MicrosOfMilli))
  private val absent = Array.tabulate(rows)(row => keyOf((rows + row) * MicrosOfMilli))
  private val content = Array.tabulate(values)(value => toValue(InternalRow(value)).copy())
  private val version = {
    val store = provider.getStore(0)
    write(store, shuffle(present))
    store.commit()
  }

  private val mixtures = scala.collection.mutable.HashMap.empty[Int, Array[UnsafeRow]]

  /** Puts as many rows as the store has, so many percent of which overwrite one. */
  def put(percent: Int): Long = {
    val keys = mixture(percent)
    time { store =>
      write(store, keys)
    } { store =>
      keys.forall(key => if (values > 1) store.valuesIterator(key).size == values else store.get(key) == content(0))
    }
  }

  /** Removes as many keys as the store has, so many percent of which it has. */
  def delete(percent: Int): Long = {
    val keys = mixture(percent)
    time { store =>
      var i = 0
      while (i < keys.length) {
        store.remove(keys(i))
        i += 1
      }
    } { store =>
      store.iterator().size == rows - rows / 100 * percent
    }
  }

  /** Scans the store, and removes so many percent of its rows, those with the lowest timestamps. */
  def evict(percent: Int): Long = {
    val end = (rows / 100 * percent) * MicrosOfMilli
    time { store =>
      val iterator = store.iterator()
      while (iterator.hasNext) {
        val key = iterator.next().key
        if (key.getLong(1) < end) {
          store.remove(key)
        }
      }
    } { store =>
      store.iterator().size == rows - rows / 100 * percent
    }
  }

  def close(): Unit = provider.close()

  private def time(operation: StateStore => Unit)(isRight: StateStore => Boolean): Long = {
    val store = provider.getStore(version)
    val start = System.nanoTime()
    operation(store)
    val nanos = System.nanoTime() - start
    require(isRight(store), s"$providerClass has other rows than were written")
    store.abort()
    nanos
  }

  private def write(store: StateStore, keys: Array[UnsafeRow]): Unit = {
    var i = 0
    while (i < keys.length) {
      store.put(keys(i), content(0))
      var value = 1
      while (value < values) {
        store.merge(keys(i), content(value))
        value += 1
      }
      i += 1
    }
  }

  private def mixture(percent: Int): Array[UnsafeRow] = mixtures.getOrElseUpdate(percent, {
    val count = rows / 100 * percent
    shuffle(shuffle(present).take(count) ++ absent.take(rows - count))
  })

  private def keyOf(micros: Long): UnsafeRow = toKey(InternalRow(random.nextInt(Int.MaxValue), micros)).copy()

  private def shuffle(keys: Array[UnsafeRow]): Array[UnsafeRow] =
    new scala.util.Random(random.nextInt()).shuffle(keys.toSeq).toArray
}

object BasicOperations {
  private val KeySchema = StructType(Seq(StructField("key1", IntegerType), StructField("key2", TimestampType)))
  private val ValueSchema = StructType(Seq(StructField("value", IntegerType)))
  private val MicrosOfMilli = 1000L
  private val toKey = UnsafeProjection.create(KeySchema)
  private val toValue = UnsafeProjection.create(ValueSchema)
}
