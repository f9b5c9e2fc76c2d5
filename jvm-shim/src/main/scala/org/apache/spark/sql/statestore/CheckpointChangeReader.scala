package org.apache.spark.sql.statestore

import scala.collection.mutable

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.families.FamilySchema
import org.apache.spark.sql.statestore.io.CheckpointClient
import org.apache.spark.sql.statestore.table.ChangeSink
import org.apache.spark.unsafe.Platform

/**
 * What the commits of a range of versions changed in one column family, as the state data source
 * reads it: version by version, in each the net change of every key.
 *
 * Guarantees: the versions are those that led to the last one. The changes of one version are in
 * memory at a time, as rows of their own. That the versions are there, and have the column family,
 * is known once this is made.
 *
 * It has the type of Spark's readers of change logs, which a subclass of the RocksDB provider must
 * give; nothing of what that type reads by itself is used.
 */
private[statestore] final class CheckpointChangeReader(
    id: StateStoreId,
    conf: StateStoreConf,
    client: CheckpointClient,
    startVersion: Long,
    endVersion: Long,
    endId: Option[String],
    family: String)
  extends StateStoreChangeDataReader(id, null, null, startVersion, endVersion, null, conf, Some(family)) {
  import CheckpointChangeReader._

  private val lineage = client.lineage(endVersion, endId, startVersion, family)
  private val schema = FamilySchema.read(lineage.state)
  private var upcoming = startVersion
  private var rows: Iterator[Change] = Iterator.empty

  override protected val changelogSuffix: String = ""

  override protected def getNext(): Change = {
    while (!rows.hasNext && upcoming <= endVersion) {
      val attempt = lineage.attempts((upcoming - startVersion).toInt)
      rows = client.changes(upcoming, attempt, endId.isDefined, family, () => new Changes(schema, upcoming - 1)).rows
      upcoming += 1
    }
    if (rows.hasNext) {
      rows.next()
    } else {
      finished = true
      null
    }
  }

  override def close(): Unit = {
    rows = Iterator.empty
    upcoming = endVersion + 1
  }
}

private[statestore] object CheckpointChangeReader {
  private type Change = (RecordType.Value, UnsafeRow, UnsafeRow, Long)

  /** Copies changes into rows, each with the batch that made it. */
  private final class Changes(schema: FamilySchema, batchId: Long) extends ChangeSink {
    private val found = mutable.ArrayBuffer.empty[Change]

    def rows: Iterator[Change] = found.iterator

    override def hasLists: Boolean = schema.hasLists

    override def put(
        keyBase: Object, keyOffset: Long, keyLength: Int,
        valueBase: Object, valueOffset: Long, valueLength: Int): Unit =
      found += ((RecordType.PUT_RECORD, key(keyBase, keyOffset, keyLength),
        value(valueBase, valueOffset, valueLength), batchId))

    override def add(
        keyBase: Object, keyOffset: Long, keyLength: Int,
        valueBase: Object, valueOffset: Long, valueLength: Int): Unit =
      found += ((RecordType.MERGE_RECORD, key(keyBase, keyOffset, keyLength),
        value(valueBase, valueOffset, valueLength), batchId))

    override def remove(keyBase: Object, keyOffset: Long, keyLength: Int): Unit =
      found += ((RecordType.DELETE_RECORD, key(keyBase, keyOffset, keyLength), null, batchId))

    private def key(base: Object, offset: Long, length: Int): UnsafeRow =
      row(schema.keySchema.length, base, offset, length)

    private def value(base: Object, offset: Long, length: Int): UnsafeRow =
      row(schema.valueSchema.length, base, offset, length)

    private def row(fields: Int, base: Object, offset: Long, length: Int): UnsafeRow = {
      val bytes = new Array[Byte](length)
      Platform.copyMemory(base, offset, bytes, Platform.BYTE_ARRAY_OFFSET.toLong, length.toLong)
      val row = new UnsafeRow(fields)
      row.pointTo(bytes, length)
      row
    }
  }
}
