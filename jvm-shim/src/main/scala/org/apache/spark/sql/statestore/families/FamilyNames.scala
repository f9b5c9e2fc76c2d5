package org.apache.spark.sql.statestore.families

import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreErrors}

/** Which names column families may have, as Spark's own store demands it. */
private[statestore] object FamilyNames {
  private final val Reserved = '$'

  /** Fails for a name that no column family can have. */
  def require(operation: String, name: String): Unit =
    if (name.isEmpty || name.trim != name) {
      throw StateStoreErrors.cannotUseColumnFamilyWithInvalidName(operation, name)
    }

  /** Fails for a name that is not the operator's to create or remove. */
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
