package org.apache.spark.sql.statestore.provider

import scala.collection.mutable

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.UnsupportedFeatureException
import org.apache.spark.sql.statestore.backend.CheckpointClient
import org.apache.spark.sql.statestore.compat.ChangeDataReader
import org.apache.spark.sql.statestore.families.{FamilySchema, ValueEvolution}
import org.apache.spark.sql.statestore.table.ChangeSink
import org.apache.spark.unsafe.Platform

/**
 * Change feed of one column family over a range of versions, for the state data source: the net changes
 * of every key, version by version.
 *
 * Guarantees: the versions are those of the lineage of the last one; values that were stored with another schema
 * are converted to the newest one. The changes of one version are in
 * memory at a time, as rows of their own. The constructor fails if a version or the column family is
 * missing.
 *
 * It extends Spark's reader of change logs, which a subclass of the RocksDB provider must return.
 */
private[statestore] final class CheckpointChangeReader(
    id: StateStoreId,
    conf: StateStoreConf,
    client: CheckpointClient,
    evolution: ValueEvolution,
    startVersion: Long,
    endVersion: Long,
    endId: Option[String],
    family: String)
  extends ChangeDataReader(id, startVersion, endVersion, conf, family) {
  import CheckpointChangeReader._

  private val lineage = client.lineage(endVersion, endId, startVersion, family)
  private val schema = evolution.newestOf(FamilySchema.read(lineage.columnFamily))
  private var upcoming = startVersion
  private var rows: Iterator[Change] = Iterator.empty

  override protected def getNext(): Change = {
    while (!rows.hasNext && upcoming <= endVersion) {
      val number = (upcoming - startVersion).toInt
      val stored = lineage.columnFamilies(number)
      val versionSchema = if (stored.isNull) schema else FamilySchema.read(stored)
      val convert = conversionOf(versionSchema)
      rows = client.changes(
        upcoming, lineage.attempts(number), endId.isDefined, family,
        () => new Changes(versionSchema, convert, upcoming - 1)).rows
      upcoming += 1
    }
    if (rows.hasNext) {
      rows.next()
    } else {
      finished = true
      null
    }
  }

  // The values of a version have the schema of its commit.
  private def conversionOf(versionSchema: FamilySchema): UnsafeRow => UnsafeRow =
    evolution.conversion(versionSchema, schema).map(convert => convert(_: UnsafeRow).copy()).getOrElse {
      if (!schema.fits(versionSchema)) {
        throw new UnsupportedFeatureException(
          s"the column family $family has $versionSchema in version $upcoming, but $schema is read. Read the changes before " +
            s"and after it separately: operator ${id.operatorId}, partition ${id.partitionId} at " +
            id.checkpointRootLocation)
      }
      identity
    }

  override def close(): Unit = {
    rows = Iterator.empty
    upcoming = endVersion + 1
  }
}

private[statestore] object CheckpointChangeReader {
  private type Change = (RecordType.Value, UnsafeRow, UnsafeRow, Long)

  /** Sink that copies changes into rows, each with the id of its batch. */
  private final class Changes(
      schema: FamilySchema, convert: UnsafeRow => UnsafeRow, batchId: Long) extends ChangeSink {
    private val changes = mutable.ArrayBuffer.empty[Change]

    def rows: Iterator[Change] = changes.iterator

    override def hasLists: Boolean = schema.hasLists

    override def put(
        keyBase: Object, keyOffset: Long, keyLength: Int,
        valueBase: Object, valueOffset: Long, valueLength: Int): Unit =
      changes += ((RecordType.PUT_RECORD, key(keyBase, keyOffset, keyLength),
        value(valueBase, valueOffset, valueLength), batchId))

    override def merge(
        keyBase: Object, keyOffset: Long, keyLength: Int,
        valueBase: Object, valueOffset: Long, valueLength: Int): Unit =
      changes += ((RecordType.MERGE_RECORD, key(keyBase, keyOffset, keyLength),
        value(valueBase, valueOffset, valueLength), batchId))

    override def remove(keyBase: Object, keyOffset: Long, keyLength: Int): Unit =
      changes += ((RecordType.DELETE_RECORD, key(keyBase, keyOffset, keyLength), null, batchId))

    private def key(base: Object, offset: Long, length: Int): UnsafeRow =
      row(schema.keySchema.length, base, offset, length)

    private def value(base: Object, offset: Long, length: Int): UnsafeRow =
      convert(row(schema.valueSchema.length, base, offset, length))

    private def row(fields: Int, base: Object, offset: Long, length: Int): UnsafeRow = {
      val bytes = new Array[Byte](length)
      Platform.copyMemory(base, offset, bytes, Platform.BYTE_ARRAY_OFFSET.toLong, length.toLong)
      val row = new UnsafeRow(fields)
      row.pointTo(bytes, length)
      row
    }
  }
}
