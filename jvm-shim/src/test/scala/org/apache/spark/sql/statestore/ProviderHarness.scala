package org.apache.spark.sql.statestore

import java.util.{Map => JMap}

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ArrayNode
import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

/**
 * Drives a real provider from Python tests: rows come and go as JSON arrays, in which a number in
 * the place of a text stands for so many letters z, and stores and iterators go by number. One
 * harness stands for one instance of a provider, as an executor would hold it.
 */
class ProviderHarness(
    providerClass: String,
    checkpointRoot: String,
    operator: Long,
    partition: Int,
    storeName: String,
    keyDdl: String,
    valueDdl: String,
    prefixColumns: Int,
    confs: JMap[String, String]) {
  import ProviderHarness._

  private val keySchema = StructType.fromDDL(keyDdl)
  private val valueSchema = StructType.fromDDL(valueDdl)
  private val keyOf = RowCodec.of(keySchema)
  private val valueOf = RowCodec.of(valueSchema)
  private val prefixOf = RowCodec.of(StructType(keySchema.take(prefixColumns)))
  private val stores = new java.util.HashMap[Int, StateStore]
  private val readStores = new java.util.HashMap[Int, ReadStateStore]
  private val iterators = new java.util.HashMap[Int, StateStoreIterator[UnsafeRowPair]]
  private var last = 0

  val provider: StateStoreProvider = {
    val sqlConf = new SQLConf
    confs.forEach((k, v) => sqlConf.setConfString(k, v))
    val hadoopConf = new Configuration
    val runId = java.util.UUID.randomUUID
    hadoopConf.set("sql.streaming.runId", runId.toString)
    val spec =
      if (prefixColumns > 0) PrefixKeyScanStateEncoderSpec(keySchema, prefixColumns)
      else NoPrefixKeyStateEncoderSpec(keySchema)
    val id = StateStoreProviderId(StateStoreId(checkpointRoot, operator, partition, storeName), runId)
    val created = StateStoreProvider.create(providerClass)
    created.init(id.storeId, keySchema, valueSchema, spec, false, new StateStoreConf(sqlConf), hadoopConf,
      false, None)
    created
  }

  def open(version: Long, id: String): Int = {
    last += 1
    stores.put(last, provider.getStore(version, Option(id), forceSnapshotOnCommit = false, loadEmpty = false))
    last
  }

  def openEmpty(version: Long): Int = {
    last += 1
    stores.put(last, provider.getStore(version, None, forceSnapshotOnCommit = false, loadEmpty = true))
    last
  }

  def openForced(version: Long, id: String): Int = {
    last += 1
    stores.put(last, provider.getStore(version, Option(id), forceSnapshotOnCommit = true, loadEmpty = false))
    last
  }

  def openRead(version: Long, id: String): Int = {
    last += 1
    readStores.put(last, provider.getReadStore(version, Option(id)))
    last
  }

  /** Hands another harness's read store over, as Spark does with another operator's. */
  def upgradeFrom(owner: ProviderHarness, read: Int, version: Long, id: String): Int = {
    last += 1
    stores.put(last, provider.upgradeReadStoreToWriteStore(
      owner.readStores.get(read), version, Option(id), forceSnapshotOnCommit = false))
    last
  }

  def put(store: Int, key: String, value: String): Unit =
    stores.get(store).put(keyOf.row(key), valueOf.row(value))

  def remove(store: Int, key: String): Unit = stores.get(store).remove(keyOf.row(key))

  def get(store: Int, key: String): String = {
    val found = any(store).get(keyOf.row(key))
    if (found == null) null else valueOf.json(found)
  }

  def exists(store: Int, key: String): Boolean = any(store).keyExists(keyOf.row(key))

  def rows(store: Int): String = drain(any(store).iterator())

  def prefixRows(store: Int, prefix: String): String =
    drain(any(store).prefixScan(prefixOf.row(prefix)))

  def openIterator(store: Int): Int = {
    last += 1
    iterators.put(last, any(store).iterator())
    last
  }

  def openPrefixIterator(store: Int, prefix: String): Int = {
    last += 1
    iterators.put(last, any(store).prefixScan(prefixOf.row(prefix)))
    last
  }

  /** The next row, or null at the end. */
  def next(iterator: Int): String = {
    val rows = iterators.get(iterator)
    if (rows.hasNext) pair(rows.next()) else null
  }

  /** Removes the key of the next row while the iterator stands on it, then reads the row. */
  def nextRemoved(iterator: Int, store: Int): String = {
    val rows = iterators.get(iterator)
    if (rows.hasNext) {
      val found = rows.next()
      stores.get(store).remove(found.key)
      pair(found)
    } else {
      null
    }
  }

  def closeIterator(iterator: Int): Unit = iterators.remove(iterator).close()

  def commit(store: Int): Long = stores.get(store).commit()

  /** The id of a committed version in checkpoint format v2, null in v1. */
  def checkpointId(store: Int): String = info(store).stateStoreCkptId.orNull

  def baseCheckpointId(store: Int): String = info(store).baseStateStoreCkptId.orNull

  def abort(store: Int): Unit = stores.get(store).abort()

  def release(read: Int): Unit = readStores.get(read).release()

  def hasCommitted(store: Int): Boolean = stores.get(store).hasCommitted

  def metrics(store: Int): String = {
    val metrics = stores.get(store).metrics
    val node = mapper.createObjectNode()
    metrics.customMetrics.foreach { case (metric, value) => node.put(metric.name, value) }
    node.put("numKeys", metrics.numKeys).put("memoryUsedBytes", metrics.memoryUsedBytes)
    mapper.writeValueAsString(node)
  }

  def snapshotMaintenance(): Unit = provider.doSnapshotMaintenance()

  def cleanupMaintenance(): Unit = provider.doCleanupMaintenance()

  def close(): Unit = provider.close()

  private def info(store: Int): StateStoreCheckpointInfo = stores.get(store).getStateStoreCheckpointInfo()

  private def any(store: Int): ReadStateStore =
    if (stores.containsKey(store)) stores.get(store) else readStores.get(store)

  // One answer for all rows: every element of a list would cost a round trip of py4j.
  private def drain(rows: StateStoreIterator[UnsafeRowPair]): String = {
    val drained = new java.util.StringJoiner(",", "[", "]")
    while (rows.hasNext) drained.add(pair(rows.next()))
    rows.close()
    drained.toString
  }

  private def pair(row: UnsafeRowPair): String = s"[${keyOf.json(row.key)},${valueOf.json(row.value)}]"
}

object ProviderHarness {
  private val mapper = new ObjectMapper

  /** Rows to JSON arrays and back, for the types that the tests use. */
  final class RowCodec(schema: StructType) {
    private val projections = ThreadLocal.withInitial(() => UnsafeProjection.create(schema))

    /** The row is reused by the thread's next call, as an operator would. */
    def row(json: String): UnsafeRow = {
      val values = mapper.readTree(json)
      projections.get()(InternalRow.fromSeq(schema.fields.toSeq.zipWithIndex.map { case (field, i) =>
        value(values.get(i), field.dataType)
      }))
    }

    def json(row: UnsafeRow): String = {
      val values = mapper.createArrayNode()
      schema.fields.zipWithIndex.foreach { case (field, i) =>
        if (row.isNullAt(i)) {
          values.addNull()
        } else {
          field.dataType match {
            case LongType => values.add(row.getLong(i))
            case IntegerType => values.add(row.getInt(i))
            case DoubleType => values.add(row.getDouble(i))
            case StringType => addText(values, row.getUTF8String(i).toString)
            case other => throw new IllegalArgumentException(s"the harness has no rows with $other")
          }
        }
      }
      mapper.writeValueAsString(values)
    }

    private def addText(values: ArrayNode, text: String): Unit =
      if (text.length > 100 && text.forall(_ == 'z')) values.add(text.length) else values.add(text)

    private def value(node: JsonNode, dataType: DataType): Any = dataType match {
      case _ if node == null || node.isNull => null
      case LongType => node.asLong
      case IntegerType => node.asInt
      case DoubleType => node.asDouble
      case StringType if node.isNumber => UTF8String.fromString("z" * node.asInt)
      case StringType => UTF8String.fromString(node.asText)
      case other => throw new IllegalArgumentException(s"the harness has no rows with $other")
    }
  }

  object RowCodec {
    private val codecs = new java.util.concurrent.ConcurrentHashMap[StructType, RowCodec]

    // Making a projection costs more than a test's whole step.
    def of(schema: StructType): RowCodec = codecs.computeIfAbsent(schema, new RowCodec(_))
  }

  /** The process id of the backend that a Python interpreter runs in this JVM, -1 if none does. */
  def backendPid(python: String): Long = io.Backend.of(python).pid
}
