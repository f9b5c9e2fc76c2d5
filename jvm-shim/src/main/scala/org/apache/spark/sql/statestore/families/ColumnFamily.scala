package org.apache.spark.sql.statestore.families

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.execution.streaming.state.TimestampAsPostfixKeyStateEncoderSpec
import org.apache.spark.sql.statestore.UnsupportedFeatureException
import org.apache.spark.sql.statestore.table.{StateTable, TableMark}

/**
 * A column family that exists: what it is, as its operator said last, and its rows.
 *
 * Guarantees: its rows are what its schema says; another schema is adopted only if they are that, too.
 *
 * @param since  the version whose commit creates it
 */
private[statestore] final class ColumnFamily private (
    private var described: FamilySchema, val table: StateTable, val since: Long) {
  import ColumnFamily._

  def schema: FamilySchema = described

  def name: String = described.name

  def mark(): FamilyMark = new FamilyMark(this, table.mark())

  /** Takes over what an operator says of the family now. */
  def adopt(wanted: FamilySchema, store: String): Unit =
    if (!described.isSame(wanted)) {
      if (!described.fits(wanted)) {
        val whatNow =
          if (isSideOfJoin(described, wanted)) {
            "Spark's state data source asks for it so with the option joinSide where a join has state format 4, and " +
              s"would tell wrong keys: read it with storeName=$name instead"
          } else {
            "Its rows cannot be taken over: give the query back what it had, or use another name for the new state"
          }
        throw new UnsupportedFeatureException(
          s"the column family $name has $described, and the query wants it with $wanted. $whatNow. Nothing was " +
            s"changed: $store")
      }
      described = wanted
    }
}

private[statestore] object ColumnFamily {
  // It takes the time in the keys of such a column family for one of the columns that are joined by.
  private def isSideOfJoin(stored: FamilySchema, wanted: FamilySchema): Boolean = (stored.spec, wanted.spec) match {
    case (TimestampAsPostfixKeyStateEncoderSpec(had), TimestampAsPostfixKeyStateEncoderSpec(asked)) =>
      asked.length == had.length + 1 && asked.init.map(_.dataType) == had.map(_.dataType)
    case _ => false
  }

  def empty(schema: FamilySchema, since: Long): ColumnFamily = new ColumnFamily(schema, schema.newTable(), since)
}

/** A column family at a committed version. */
private[statestore] final class FamilyMark(val family: ColumnFamily, val content: TableMark) {
  def describe(): ObjectNode = family.schema.describe(content.keys, content.values, family.since)
}
