package org.apache.spark.sql.statestore.families

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.compat.Since41

/**
 * Spark's validation of loaded rows against their schema
 * (`spark.sql.streaming.stateStore.formatValidation.enabled`): checks one row of a family, which is
 * enough to detect a query whose schema changed between two runs.
 */
private[statestore] object FormatValidation {
  def apply(family: ColumnFamily, store: StateStoreId, conf: StateStoreConf): Unit =
    if (conf.formatValidationEnabled) {
      val rows = family.table.iterator()
      if (rows.hasNext) {
        val row = rows.next()
        Since41.validateStateRowFormat(
          row.key, family.schema.keySchema, row.value, family.schema.valueSchema, store, conf)
      }
    }
}
