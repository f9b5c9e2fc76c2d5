package org.apache.spark.sql.statestore.compat

import org.apache.spark.sql.execution.streaming.state._

/**
 * Spark's state store interfaces with the members of the newest supported release. Members that the running
 * Spark lacks are declared by the traits of the release that added them, and are not called by it.
 */
private[statestore] trait NewestStateStoreProvider extends StateStoreProvider with ProviderSince42 with ProviderSince43

private[statestore] trait NewestFineGrainedReplay extends SupportsFineGrainedReplay with ReplaySince41

private[statestore] trait NewestReadStateStore
  extends ReadStateStore with ReadStoreSince41 with ReadStoreSince42 with ReadStoreSince43

private[statestore] trait NewestStateStore
  extends NewestReadStateStore with StateStore with WriteStoreSince41 with WriteStoreSince42
