package org.apache.spark.sql.statestore.families

import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreErrors}

/** Validation of the names of column families, with the rules of Spark's own store. */
private[statestore] object FamilyNames {
  private final val Reserved = '$'

  /** Fails for an invalid name. */
  def require(operation: String, name: String): Unit =
    if (name.isEmpty || name.trim != name) {
      throw StateStoreErrors.cannotUseColumnFamilyWithInvalidName(operation, name)
    }

  /** Fails for an invalid name, or one that an operator must not create or remove. */
  def requireFree(operation: String, name: String, isInternal: Boolean): Unit = {
    require(operation, name)
    if (name == StateStore.DEFAULT_COL_FAMILY_NAME && !isInternal) {
      throw StateStoreErrors.cannotUseColumnFamilyWithInvalidName(operation, name)
    }
    if (!isInternal && name.charAt(0) == Reserved) {
      throw StateStoreErrors.cannotCreateColumnFamilyWithReservedChars(name)
    }
  }
}
