package org.apache.spark.sql.statestore.families

import org.apache.spark.sql.execution.streaming.state._

/**
 * Spark's check that loaded rows have the form that their schema demands
 * (`spark.sql.streaming.stateStore.formatValidation.enabled`): looks at one row of a family, which
 * is enough to find a query whose schema changed between two runs.
 */
private[statestore] object FormatValidation {
  def apply(family: ColumnFamily, store: StateStoreId, conf: StateStoreConf): Unit =
    if (conf.formatValidationEnabled) {
      val rows = family.table.iterator()
      if (rows.hasNext) {
        val row = rows.next()
        StateStoreProvider.validateStateRowFormat(
          row.key, family.schema.keySchema, row.value, family.schema.valueSchema, store, conf)
      }
    }
}
