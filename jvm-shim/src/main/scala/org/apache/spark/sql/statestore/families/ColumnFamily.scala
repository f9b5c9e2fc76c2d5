package org.apache.spark.sql.statestore.families

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.statestore.UnsupportedFeatureException
import org.apache.spark.sql.statestore.table.{CopiedFamily, LocalCopy, StateTable, TableSnapshot}

/**
 * A column family: its schema and its rows.
 *
 * Guarantees: the rows match the schema; another schema is adopted only if they match that, too.
 *
 * @param createdAtVersion  the version whose commit creates it
 */
private[statestore] final class ColumnFamily private (
    private var described: FamilySchema, val table: StateTable, val createdAtVersion: Long) {

  def schema: FamilySchema = described

  def name: String = described.name

  /** Returns a family with the same rows, their values converted to another schema; this one is unchanged. */
  def evolve(newSchema: FamilySchema, convert: UnsafeRow => UnsafeRow, createdAtVersion: Long): ColumnFamily = {
    val evolved = ColumnFamily.empty(newSchema, createdAtVersion)
    try {
      evolved.table.reserve(table.numKeys)
      table.iterator(everyValue = schema.hasLists).foreach { row =>
        if (schema.hasLists) evolved.table.merge(row.key, convert(row.value))
        else evolved.table.put(row.key, convert(row.value))
      }
      evolved
    } catch {
      case e: Throwable =>
        evolved.table.discard()
        throw e
    }
  }

  def snapshot(): FamilySnapshot = new FamilySnapshot(this, table.snapshot())

  /** Adopts the schema that an operator declares now. */
  def adopt(declaredSchema: FamilySchema, store: String): Unit = {
    requireFitting(declaredSchema, store)
    described = declaredSchema
  }

  /** Fails if the rows cannot be read with the schema that an operator declares. */
  def requireFitting(declaredSchema: FamilySchema, store: String): Unit =
    if (!described.isSame(declaredSchema)) {
      described.requireKeyOrder(declaredSchema, store)
      if (!described.fits(declaredSchema)) {
        throw new UnsupportedFeatureException(
          s"the column family $name has $described, but the query declares it with $declaredSchema. Its rows cannot be " +
            "converted: restore the former schema in the query, or use another name for the new state. Nothing was " +
            s"changed: $store")
      }
    }
}

private[statestore] object ColumnFamily {
  def empty(schema: FamilySchema, createdAtVersion: Long): ColumnFamily =
    new ColumnFamily(schema, schema.newTable(), createdAtVersion)

  /** Returns a family with the rows of a local copy; an empty one if the copy does not have it. */
  def of(schema: FamilySchema, createdAtVersion: Long, copy: LocalCopy): ColumnFamily = {
    val family = new ColumnFamily(schema, schema.newTable(copy.keyHashOf(schema.name, createdAtVersion)), createdAtVersion)
    try copy.fill(schema.name, createdAtVersion, schema.layout, family.table) catch {
      case e: Throwable =>
        family.table.discard()
        throw e
    }
    family
  }
}

/** A column family at a committed version. */
private[statestore] final class FamilySnapshot(val family: ColumnFamily, val content: TableSnapshot) {
  def copied: CopiedFamily = new CopiedFamily(family.name, family.createdAtVersion, family.schema.layout, family.table, content)

  def describe(): ObjectNode = family.schema.describe(content.keys, content.values, family.createdAtVersion)
}
